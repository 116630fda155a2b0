package repair

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/httpfence"
	"github.com/tenurehq/tenure/server/cli"
)

// httpResource is a resource of a ledger, at http://HOST:PORT/v1/resources/NAME.
type httpResource struct{ url string }

func openHTTP(at, resource string) (*sink, error) {
	base, err := url.Parse(at)
	if err != nil || base.Host == "" {
		return nil, cli.Usage("sink: %q is not http://HOST:PORT", at)
	}
	r := httpResource{base.JoinPath("v1", "resources", url.PathEscape(resource)).String()}
	return &sink{mark: r.mark, advance: r.advance, close: func() error { return nil }}, nil
}

func (r httpResource) mark(ctx context.Context) (m fence.Mark, err error) {
	text, err := r.call(ctx, http.MethodGet, "", http.Header{})
	if err == nil && text != nil {
		err = json.Unmarshal(text, &m)
	}
	return m, err
}

func (r httpResource) advance(ctx context.Context, s fence.Stamp) error {
	h := http.Header{"Content-Type": {"application/json"}}
	err := httpfence.Format(s, h.Set)
	if err == nil {
		_, err = r.call(ctx, http.MethodPost, "/advance", h)
	}
	return err
}

// call returns the body of the response, or nil if the resource was never written to.
func (r httpResource) call(ctx context.Context, method, path string, h http.Header) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, r.url+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header = h
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := httpfence.Refusal(resp); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode == http.StatusNotFound && method == http.MethodGet:
		return nil, nil
	case resp.StatusCode/100 != 2:
		return nil, fmt.Errorf("%s %s: %s: %.500s", method, r.url+path, resp.Status, text)
	}
	return text, nil
}
