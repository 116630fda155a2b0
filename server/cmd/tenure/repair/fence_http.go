package repair

import (
	"context"
	"encoding/json"
	"errors"
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

// errNoResource: the resource was never written to.
var errNoResource = errors.New("no such resource")

func (r httpResource) mark(ctx context.Context) (fence.Mark, error) {
	var m struct {
		Deployment string      `json:"deployment"`
		Group      string      `json:"group"`
		Token      fence.Token `json:"token"`
		Session    string      `json:"session"`
	}
	err := r.call(ctx, http.MethodGet, r.url, nil, &m)
	if errors.Is(err, errNoResource) {
		err = nil
	}
	return fence.Mark{Deployment: m.Deployment, Group: m.Group, Token: m.Token, Session: m.Session}, err
}

func (r httpResource) advance(ctx context.Context, s fence.Stamp) error {
	h := http.Header{"Content-Type": {"application/json"}}
	if err := httpfence.Format(s, h.Set); err != nil {
		return err
	}
	return r.call(ctx, http.MethodPost, r.url+"/advance", h, nil)
}

func (r httpResource) call(ctx context.Context, method, target string, h http.Header, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, target, http.NoBody)
	if err != nil {
		return err
	}
	if h != nil {
		req.Header = h
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := httpfence.Refusal(resp); err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	switch {
	case err != nil:
		return err
	case resp.StatusCode == http.StatusNotFound:
		return errNoResource
	case resp.StatusCode/100 != 2:
		return fmt.Errorf("%s %s: %s: %.500s", method, target, resp.Status, text)
	case into == nil:
		return nil
	}
	return json.Unmarshal(text, into)
}
