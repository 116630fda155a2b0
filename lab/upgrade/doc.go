// Package upgrade runs fleets in which this version and the previous one work together:
// services, commands, candidates and nodes of both on one engine and one ledger. There is
// nothing to import.
//
// The previous version is the commit whose full name stands in the file PREVIOUS. A release
// writes its own there when it is made, so that the next is tested against it. The tests
// take its sources out of the history of the checkout and build its programs below .cache,
// once. Without that history they say so and are skipped; where the history is complete and
// the commit is not in it they fail if CI is set.
package upgrade
