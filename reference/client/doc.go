// Package client calls a fleet of nodes: it finds the leader, goes where a node that
// does not lead sends it, and tries again for as long as the caller's context allows.
//
// What it does not do is repeat a write whose outcome is unknown. A write is repeated
// only if it was surely not sent, or if the node's answer says that nothing was done
// (409 not_leader, a retryable 503 or 429). Everything else is ErrUnknown: a number
// may have been taken, a record may have been written, and only the caller knows
// whether to do it again. Reads are repeated always.
package client
