// Package httpapi is what the HTTP services of this module have in common: errors
// as problem+json, JSON bodies with a limit, and a server with timeouts that stops
// in order.
package httpapi
