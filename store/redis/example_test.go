package redis_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/redis"
)

// A process leads the group "billing" and writes to a fenced sink with the term's stamp.
func Example() {
	ctx := context.Background()
	cfg, err := redis.Parse(os.Getenv("REDIS_URL"))
	if err != nil {
		fmt.Println(err)
		return
	}
	s, err := redis.Open(ctx, cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	node, err := lease.New(s, lease.Config{
		Candidate: tenure.Candidate{ID: "node-1"}, Scope: store.Scope{"billing"}, Timing: lease.Timing{TTL: 10 * time.Second},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = node.Close(ctx) }()
	elector, err := node.Elector("billing")
	if err != nil {
		fmt.Println(err)
		return
	}
	err = tenure.Lead(ctx, elector, func(_ context.Context, term *tenure.Term) error {
		fmt.Println("token", term.Stamp().Token)
		return tenure.ErrDone
	}) // tenure.WithSinks(…) seals the sinks first: with Redis do not leave it out
	fmt.Println(err, "durable:", s.Caps().Loses == "")
}

// The example prints what it says.
func TestExample(t *testing.T) {
	t.Setenv("REDIS_URL", servertest.Redis(t).URL())
	r, w, err := os.Pipe()
	must(t, err)
	stdout := os.Stdout
	os.Stdout = w
	Example()
	os.Stdout = stdout
	_ = w.Close()
	if out, err := io.ReadAll(r); err != nil || string(out) != "token 1\n<nil> durable: false\n" {
		t.Errorf("%s, %v", out, err)
	}
}
