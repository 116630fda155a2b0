package remote

import (
	"context"
	"crypto/tls"
	"errors"
	"mime"
	"net/http"
)

var errSlow = errors.New("no answer in time (stopped, cut off, or without an engine)")

// explain says in words what a bare error does not.
func explain(err error) error {
	var record tls.RecordHeaderError
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return errSlow
	case errors.As(err, &record):
		return errors.New("it does not speak TLS: does the URL have to begin with http://?")
	default:
		return err
	}
}

func mediaType(resp *http.Response) string {
	t, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return t
}
