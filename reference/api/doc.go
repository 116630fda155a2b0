// Package api is what a node of the fleet and its callers say to each other: the
// answers, the problems and the file that says where a fleet is.
//
// Two kinds of calls can be told apart by their answers. What needs the leader
// (/next, writes to /jobs, PUT /fleet, POST /compaction) is answered by every other
// node with 409 not_leader or 503 no_leader, and carries the leader's token. What
// needs none (/records, and all reads) is answered by any node, straight from the
// ledger, also while nobody leads; a record is protected by its version.
package api
