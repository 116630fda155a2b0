package storeapi_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/server/storeapi"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/remote"
)

// trusting allows every caller everything.
func trusting(s store.Store) storeapi.Config {
	return storeapi.Config{Store: s, Own: func(*http.Request, string) error { return nil },
		May: func(*http.Request, auth.Verb, store.Scope) error { return nil }}
}

func handler(cfg storeapi.Config) (http.Handler, error) {
	api, err := storeapi.New(cfg)
	if err != nil {
		return nil, err
	}
	mux := httpapi.NewMux()
	for _, r := range api.Routes() {
		mux.Handle(http.MethodPost, r.Method.Path(), r.Handle)
	}
	return mux, nil
}

// instance is a service in this process, with the limits of a real one.
func instance(t *testing.T, cfg storeapi.Config) (url string) {
	t.Helper()
	h, err := handler(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		_ = httpapi.Serve(ctx, ln, h, httpapi.Limits{Grace: 100 * time.Millisecond}, slog.New(slog.DiscardHandler))
	})
	t.Cleanup(func() {
		cancel()
		serving.Wait()
	})
	return "http://" + ln.Addr().String()
}

func connect(t *testing.T, cfg remote.Config) *remote.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := remote.Open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}
