// Package check reads what happened in a run and says which guarantee held.
//
// A history is a directory of .ndjson files. Every line is one event, every instant
// in it is a reading of one host's clock (package clock), and every file ends with a
// line that counts the others: a file that was cut off is seen. [Writer] writes such a
// file, [Dir] reads a directory and returns a [Report] with one [Verdict] for each
// check. The guarantees are those of docs/guarantees.md; besides there are "once" (a
// declared job's instants fire once each and none is left out), "evidence" (each fault bit) and
// "history" (the files are whole).
//
// A verdict is pass, fail or unknown, and only pass is good: a check that looked at
// nothing is unknown. A failure names file and line of the events that show it.
//
// What is not checked: that the history is true. Whoever records leaves nothing out;
// what an observer can miss by design (package lease: a watch may skip states) is not
// held against a run. Checks are linear in the history, up to a logarithm of what is
// under way at once. Calls and attempts are not kept in memory; terms, grants, seals,
// faults and jobs are, up to a limit, beyond which the verdict is unknown.
package check
