// Package api has the writes, answers and errors of the ledger, in Go and as JSON.
package api
