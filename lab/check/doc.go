// Package check reads the history of a run (package history) and decides which guarantees
// held. [Dir] returns a [Report] with one [Verdict] for each check. The guarantees are those
// of docs/guarantees.md. Three more checks are "once" (every instant of a declared job fires
// exactly once), "evidence" (the history shows the effect of each fault) and "history" (the
// files are complete and the run is the one that the experiment requires).
//
// A verdict is pass, fail or unknown, and only pass is good: a check that found nothing to
// compare is unknown. A failure names file and line of the events that show it.
//
// # Limitations
//
// The checks find mistakes, losses and partial changes of a recording, as docs/fleet.md
// lists them. They do not find a forger who changes history, digests, database and result
// consistently, nor what a process did not record. What an observer may miss by design
// (package lease: a watch may skip states) does not count against a run. Checks take linear
// time, up to a logarithm of the concurrency. Calls and attempts are not kept in memory;
// everything else is, up to a limit above which the verdicts are unknown.
package check
