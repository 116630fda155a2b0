package remote_test

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"testing"
	"time"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/remote"
	"github.com/tenurehq/tenure/store/remote/wire"
)

// follow writes lines as a stream that stays open.
func follow(w http.ResponseWriter, lines ...string) {
	w.Header().Set("Content-Type", wire.ContentTypeStream)
	for _, l := range lines {
		_, _ = io.WriteString(w, l+"\n")
	}
	_ = http.NewResponseController(w).Flush()
}

// A stream that falls silent, at its beginning or later, ends in a bounded time
// with an error that claims nothing, and the next watch is at another instance.
func TestSilentStreamEnds(t *testing.T) {
	for name, silent := range map[string]http.HandlerFunc{
		"from the beginning": hang,
		"after a while": func(w http.ResponseWriter, r *http.Request) {
			follow(w, `{"heartbeat":true}`, `{"complete":true}`)
			hang(w, r)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bad, good := newScripted(t), newScripted(t)
			s := connect(t, remote.Config{URLs: []string{bad.URL, good.URL}, Heartbeat: 300 * time.Millisecond})
			bad.does(silent)
			good.does(func(w http.ResponseWriter, r *http.Request) {
				follow(w, `{"view":{"group":"good","state":"vacant"}}`)
				hang(w, r)
			})
			ctx := within(t, 20*time.Second)
			for watches := 1; ; watches++ {
				var last error
				for v, err := range s.Watch(ctx, store.Scope{"good"}) {
					if v.View.Group == "good" {
						if bad.count(wire.Watch) != 1 || watches > 2 {
							t.Errorf("%d watches, %d of them at the silent instance", watches, bad.count(wire.Watch))
						}
						return
					}
					last = err
				}
				if last == nil || store.Definite(last) || ctx.Err() != nil {
					t.Fatalf("it ended with %v", last)
				}
			}
		})
	}
}

// Heartbeats keep a stream on which nothing happens.
func TestHeartbeatsKeep(t *testing.T) {
	srv := newScripted(t)
	s := connect(t, remote.Config{URLs: []string{srv.URL}, Heartbeat: 500 * time.Millisecond})
	srv.does(func(w http.ResponseWriter, r *http.Request) {
		for range 20 { // longer than two silences that would be suffered
			follow(w, `{"heartbeat":true}`)
			time.Sleep(200 * time.Millisecond)
		}
		follow(w, `{"complete":true}`)
		hang(w, r)
	})
	for v, err := range s.Watch(within(t, 60*time.Second), store.Scope{"g"}) {
		if err != nil || v.Kind != store.Synced {
			t.Fatal(v, err)
		}
		break
	}
}

// A consumer that does not read gets, when it does, the newest view of each group
// in the order in which they first changed, and the end of the snapshot in its
// place; the service is not held up meanwhile.
func TestSlowConsumer(t *testing.T) {
	srv := newScripted(t)
	s := connect(t, remote.Config{URLs: []string{srv.URL}})
	const versions = 20_000
	written := make(chan struct{})
	srv.does(func(w http.ResponseWriter, r *http.Request) {
		follow(w, `{"view":{"group":"a","version":1,"state":"led"}}`, `{"view":{"group":"b","version":1,"state":"led"}}`, `{"complete":true}`)
		for i := range versions {
			_, _ = fmt.Fprintf(w, `{"view":{"group":"b","version":%d,"state":"vacant"}}`+"\n", i+2)
		}
		follow(w, `{"view":{"group":"c","version":1,"state":"led"}}`, `{"problem":{"status":503,"code":"unavailable","detail":"the end"}}`)
		close(written)
		hang(w, r)
	})
	next, stop := iter.Pull2(s.Watch(within(t, 60*time.Second), store.Scope{"*"}))
	defer stop()
	take := func() store.View {
		t.Helper()
		v, err, ok := next()
		if !ok || err != nil {
			t.Fatal(v, err, ok)
		}
		return v.View
	}
	if v := take(); v.Group != "a" {
		t.Fatalf("first comes %+v", v)
	}
	<-written
	seen := map[string]uint64{}
	n := 0
	for len(seen) < 3 || seen["b"] != versions+1 {
		v := take()
		seen[v.Group] = v.Version
		if n++; n > versions/10 {
			t.Fatalf("so many views: %v", seen)
		}
		time.Sleep(time.Millisecond) // slow
	}
}

// Errors in a stream are those of the store, exactly.
func TestStreamErrors(t *testing.T) {
	srv := newScripted(t)
	s := connect(t, remote.Config{URLs: []string{srv.URL}})
	for code, want := range map[string]error{wire.CodeInvalid: store.ErrInvalid, wire.CodeRewound: store.ErrRewound, wire.CodeUnavailable: nil} {
		srv.does(func(w http.ResponseWriter, r *http.Request) {
			follow(w, `{"problem":{"status":400,"code":"`+code+`","detail":"said so"}}`)
		})
		for _, err := range s.Watch(within(t, 20*time.Second), store.Scope{"g"}) {
			if err == nil || want != nil && !errors.Is(err, want) || want == nil && store.Definite(err) {
				t.Errorf("%s: %v", code, err)
			}
		}
	}
}
