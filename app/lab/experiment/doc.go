// Package experiment attacks a fleet of real processes and says what held.
//
// An experiment is one file: the question, what is expected (written before the run),
// the seed, the configuration and the thresholds. Running it starts a fleet for each of
// its trials, drives load, puts faults into it, and writes down every call, every
// attempt to write, every term and every effect as a history of package check, which is
// then checked without looking at the fleet again. A trial that could not tell has not
// passed.
//
// Results are kept experiment by experiment: a run that was stopped goes on with the
// next one. They belong to the programs and the configuration that made them; another
// build runs again.
package experiment
