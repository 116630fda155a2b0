package ledger_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/fencetest"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/client"
)

// sinkOf is a ledger as a sink, through its HTTP client; an effect is a tick. p is nil in a
// child process, which only opens it.
func sinkOf(name string, p *process) fencetest.Sink {
	var made atomic.Int64
	return fencetest.Sink{
		Name: name,
		Create: func(testing.TB) string {
			return fmt.Sprintf("%s resource-%d", p.url(), made.Add(1))
		},
		Open: func(where string) (fencetest.Resource, error) {
			url, resource, _ := strings.Cut(where, " ")
			c, err := client.New(client.Config{URL: url, Timeout: 20 * time.Second})
			if err != nil {
				return fencetest.Resource{}, err
			}
			return resourceOf(c, resource), nil
		},
		Restart:  func(testing.TB) { p.restart() },
		Patience: time.Minute,
		NoMoment: "check and write are one transaction inside the ledger, where a client cannot stop it",
	}
}

func resourceOf(c *client.Client, resource string) fencetest.Resource {
	batch := func(s fence.Stamp, digest, payload string) api.Batch {
		data, _ := json.Marshal(payload)
		return api.Batch{Resource: resource, Stamp: s, Digest: digest, Writes: []api.Write{{Tick: &api.TickWrite{Payload: data}}}}
	}
	return fencetest.Resource{
		Write: func(ctx context.Context, s fence.Stamp, payload string) error {
			_, err := c.Apply(ctx, batch(s, "", payload))
			return err
		},
		WriteStrict: func(ctx context.Context, s fence.Stamp, digest, payload string) (string, error) {
			a, err := c.Apply(ctx, batch(s, digest, payload))
			if err != nil {
				return "", err
			}
			answer, err := json.Marshal(a)
			return string(answer), err
		},
		Effects: func(ctx context.Context) (effects []string, err error) {
			for after := ""; ; {
				p, err := c.Ticks(ctx, resource, after, 0)
				if err != nil {
					return nil, err
				}
				for _, t := range p.Items {
					var payload string
					if err := json.Unmarshal(t.Payload, &payload); err != nil {
						return nil, err
					}
					effects = append(effects, payload)
				}
				if after = p.Next; after == "" {
					return effects, nil
				}
			}
		},
		Mark: func(ctx context.Context) (fence.Mark, error) {
			r, err := c.Resource(ctx, resource)
			if errors.Is(err, api.ErrNotFound) {
				return fence.Mark{}, nil
			}
			return r.Mark(), err
		},
		Seal:    func(ctx context.Context, s fence.Stamp) error { return c.Seal(ctx, resource, s) },
		Advance: func(ctx context.Context, s fence.Stamp) error { return c.Advance(ctx, resource, s) },
		Close:   func() error { c.Close(); return nil },
	}
}

// The ledger passes the tests of a sink on SQLite, with writers and the ledger itself killed.
func TestSinkSQLite(t *testing.T) {
	fencetest.Run(t, sinkOf("sqlite", startProcess(t, served{DB: filepath.Join(t.TempDir(), "l.db")})))
}

// The ledger passes the tests of a sink on PostgreSQL.
func TestSinkPostgres(t *testing.T) {
	db := servertest.Postgres(t)
	fencetest.Run(t, sinkOf("postgres", startProcess(t, served{DB: db.URL()})))
}

// With fencing off it does not, and the suite reports that.
func TestUnfencedIsNoSink(t *testing.T) {
	fencetest.Breaks(t, sinkOf("unfenced", startProcess(t, served{DB: filepath.Join(t.TempDir(), "l.db"), Unfenced: true})),
		fencetest.StaleRefused, fencetest.Atomic, fencetest.SealCloses, fencetest.SealRefused, fencetest.SlipRefused,
		fencetest.ForeignRefused, fencetest.SessionRefused, fencetest.StrictOrder, fencetest.StrictClone, fencetest.MarkSurvives)
}
