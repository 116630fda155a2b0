// Package upgrade runs fleets in which this version and the previous one work together:
// services, commands, candidates and nodes of both on one engine and one ledger. It exports
// nothing.
//
// The previous version is the commit in the file PREVIOUS. A release writes its own commit
// there, so that the next release is tested against it. The tests take its sources from the
// git history and build its programs once, in .cache. Without history they are skipped. If the
// history is complete and does not have the commit, they fail if CI is set.
package upgrade
