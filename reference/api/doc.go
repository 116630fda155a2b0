// Package api has the answers and problems of a node, and the vocabulary of its hooks.
//
// There are two kinds of calls. Those that need the leader (/next, writes to /jobs, PUT /fleet,
// POST /compaction) are answered by every other node with 409 not_leader or 503 no_leader, and
// carry the token of the leader. Those that need none (/records, and all reads) are answered by
// any node from the ledger, also while nobody leads; a record is protected by its version.
package api
