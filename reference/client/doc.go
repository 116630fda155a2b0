// Package client calls a fleet of nodes. It finds the leader, follows the address that a node
// that does not lead answers with, and retries until the caller's context ends.
//
// Limitations: it does not retry a write whose outcome is unknown. It retries a write only if
// it was certainly not sent, or if the answer says that nothing was done (409 not_leader, a
// retryable 503 or 429). Everything else is ErrUnknown: a number may have been taken, a record
// may have been written, and only the caller knows whether to try again. It always retries
// reads.
package client
