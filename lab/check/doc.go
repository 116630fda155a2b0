// Package check reads what happened in a run and says which guarantee held.
//
// A history is a directory of .ndjson files. Every line is one event, every instant
// in it is a reading of one host's clock (package clock). The last line of a file has the
// number and the digest of the others, and manifest.json lists the files. [Writer] writes
// a file, [WriteManifest] the manifest, [Dir] reads a directory and returns a [Report] with
// one [Verdict] for each check. The guarantees are those of docs/guarantees.md; besides
// there are "once" (a declared job's instants fire once each and none is left out),
// "evidence" (the history shows each fault) and "history" (the files are whole and the run
// is the one that the experiment requires).
//
// A verdict is pass, fail or unknown, and only pass is good: a check that looked at
// nothing is unknown. A failure names file and line of the events that show it.
//
// Limitations. The checks find mistakes, loss and partial changes of a recording, as
// docs/fleet.md lists them. They do not find a forger who rewrites history, digests,
// database and result consistently, nor what a process did not write down. What an
// observer can miss by design (package lease: a watch may skip states) is not held
// against a run. Checks are linear in the history, up to a logarithm of what is
// under way at once. Calls and attempts are not kept in memory; allocations, terms, grants, seals,
// faults and jobs are, up to a limit, beyond which the verdict is unknown.
package check
