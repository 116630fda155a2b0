// Package httpapi has what the HTTP servers of this module share: errors as problem+json, JSON
// bodies with a limit, and a server with timeouts that stops in order.
package httpapi
