// Package api is what the ledger and its callers say to each other: the writes, the
// answers and the errors, in Go and as JSON.
package api
