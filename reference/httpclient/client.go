// Package httpclient makes the HTTP clients of the fleet.
package httpclient

import (
	"errors"
	"net"
	"net/http"
	"syscall"
	"time"
)

// New returns a client that keeps connections open, at most so many to each host when they are
// idle. Dial bounds the time to connect.
func New(dial time.Duration, idle int) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext:         (&net.Dialer{Timeout: dial}).DialContext,
		MaxIdleConns:        512,
		MaxIdleConnsPerHost: idle,
		IdleConnTimeout:     time.Minute,
		DisableCompression:  true,
	}}
}

// NotSent reports that the request of a failed call was certainly not sent.
func NotSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" || errors.Is(err, syscall.ECONNREFUSED)
}
