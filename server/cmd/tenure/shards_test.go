package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/shard"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/remote"
)

// Two processes share a set over the service. shards shows who owns what, pin and weigh move shards,
// and drain returns when a node owns nothing.
func TestShardCommands(t *testing.T) {
	const count = 12
	url := startServe(t, "--data-dir=").ready.URL
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var all sync.WaitGroup
	defer all.Wait()
	stop, end := context.WithCancel(ctx)
	defer end()
	for _, id := range []string{"a", "b"} {
		st, err := remote.Open(ctx, remote.Config{URLs: []string{url}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(st.Close)
		node, err := lease.New(st, lease.Config{Candidate: tenure.Candidate{ID: id}, Scope: store.Scope{"orders-*"}, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			_ = shard.Run(stop, node, shard.Config{Set: "orders", Count: count, Settle: 500 * time.Millisecond}, func(ctx context.Context, _ shard.Shard) error {
				<-ctx.Done()
				return ctx.Err()
			})
			_ = node.Close(context.WithoutCancel(ctx))
		})
	}
	tenureOK := func(args ...string) string {
		t.Helper()
		var out, said bytes.Buffer
		if code := run(ctx, append(args, "--store="+url), environment(), strings.NewReader(""), &out, &said); code != 0 {
			t.Fatalf("tenure %v: exit code %d: %s", args, code, said.String())
		}
		return out.String()
	}
	owners := func() map[string]int {
		t.Helper()
		var rows []struct {
			NodeID string `json:"node_id"`
			Shards int    `json:"shards"`
		}
		n := map[string]int{}
		text := tenureOK("shards", "orders", "-o", "json")
		if err := json.Unmarshal([]byte(text), &rows); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		for _, r := range rows {
			n[r.NodeID] = r.Shards
		}
		return n
	}
	until := func(what string, is func(map[string]int) bool) {
		t.Helper()
		for !is(owners()) {
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				t.Fatalf("%s: %v", what, owners())
			}
		}
	}
	for count := 0; count == 0; { // no process has agreed on the set yet
		st, err := remote.Open(ctx, remote.Config{URLs: []string{url}})
		if err != nil {
			t.Fatal(err)
		}
		rules, err := shard.ReadRules(ctx, st, "orders")
		st.Close()
		if err != nil {
			t.Fatal(err)
		}
		count = rules.Count
	}
	until("both own shards", func(n map[string]int) bool { return n["a"] > 0 && n["b"] > 0 && n["a"]+n["b"] == count })
	for i := range count {
		tenureOK("pin", "orders", strconv.Itoa(i), "a")
	}
	until("all are pinned to a", func(n map[string]int) bool { return n["a"] == count })
	tenureOK("weigh", "orders", "b", "3")
	tenureOK("drain", "a", "--yes")
	until("a is drained", func(n map[string]int) bool { return n["b"] == count })
	if text := tenureOK("shards", "orders", "--all"); strings.Count(text, "orders-") != count {
		t.Errorf("shards --all: %s", text)
	}
	for _, bad := range [][]string{{"shards", "unknown"}, {"pin", "orders", "99", "a"}, {"pin", "orders", "x", "a"}, {"weigh", "orders", "a", "0"}, {"shards", "or/ders"}} {
		var out, said bytes.Buffer
		if code := run(ctx, append(bad, "--store="+url), environment(), strings.NewReader(""), &out, &said); code == 0 {
			t.Errorf("tenure %v was accepted", bad)
		}
	}
}
