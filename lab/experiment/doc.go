// Package experiment attacks a fleet of real processes and says what held.
//
// An experiment is a declaration: the question, what is expected (written before the run),
// the seed, the trials and the thresholds. A trial is one fleet: its configuration and what
// its rounds do. There is one round loop (loop), and every fault comes from the one table
// of faults (chaos.Kinds). Running a trial starts the fleet, drives load, injects faults,
// and writes down every call, every attempt to write, every term and every effect as a
// history of package check, which is then checked without looking at the fleet again. A
// trial that could not tell has not passed.
//
// Results are kept trial by trial: a run that was stopped goes on with the next one. They
// belong to the programs and the configuration that made them; another build runs again.
package experiment
