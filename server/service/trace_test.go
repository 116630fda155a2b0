package service

import (
	"fmt"
	"strings"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/remote"
)

// ended returns the ended spans of a name, as "attribute=value …" in no order.
func ended(rec *tracetest.SpanRecorder, name string) (all []sdk.ReadOnlySpan) {
	for _, s := range rec.Ended() {
		if s.Name() == name {
			all = append(all, s)
		}
	}
	return all
}

func attributes(s sdk.ReadOnlySpan) map[string]string {
	all := map[string]string{}
	for _, a := range s.Attributes() {
		all[string(a.Key)] = a.Value.String()
	}
	return all
}

// A term is a span with its election as a child. A handover is a span within its request. A
// term that has not ended when the instance stops has a span too.
func TestTermSpans(t *testing.T) {
	rec := tracetest.NewSpanRecorder()
	in := serve(t, memStore(t), func(c *Config) {
		c.Tracer = sdk.NewTracerProvider(sdk.WithSpanProcessor(rec)).Tracer("test")
	})
	a := lead(in, "billing", "a")
	in.becomes(`tenure_group_leader{group="billing",leader_node_id="a"}`, "1")
	resign(in, a)
	in.becomes("tenure_groups_without_leader", "1")
	b := lead(in, "billing", "b")
	want[Session](in, 201, "POST", "/sessions", SessionRequest{NodeID: "c", Groups: []string{"*"}})
	want[Resigned](in, 200, "POST", "/groups/billing/resign", ResignRequest{NodeID: "b", Term: b.Term, Handle: b.Handle, Successor: "c"})
	in.becomes(`tenure_group_leader{group="billing",leader_node_id="c"}`, "1")
	in.stop()

	terms, elections, handovers := ended(rec, "term"), ended(rec, "election"), ended(rec, "handover")
	if len(terms) != 3 || len(elections) != 1 || len(handovers) != 1 {
		t.Fatalf("%d terms, %d elections, %d handovers", len(terms), len(elections), len(handovers))
	}
	for i, want := range []map[string]string{
		{"tenure.group": "billing", "tenure.term": "1", "tenure.leader_node_id": "a", "tenure.reason": "resigned"},
		{"tenure.group": "billing", "tenure.term": "2", "tenure.leader_node_id": "b", "tenure.reason": "transferred"},
		{"tenure.group": "billing", "tenure.term": "3", "tenure.leader_node_id": "c", "tenure.unfinished": "true"},
	} {
		got := attributes(terms[i])
		for k, v := range want {
			if got[k] != v {
				t.Errorf("term %d: %s is %q, want %q", i+1, k, got[k], v)
			}
		}
		if got["tenure.unfinished"] != want["tenure.unfinished"] || terms[i].Parent().IsValid() || terms[i].EndTime().Before(terms[i].StartTime()) {
			t.Errorf("term %d: %v", i+1, terms[i])
		}
	}
	e := elections[0]
	if e.Parent().SpanID() != terms[1].SpanContext().SpanID() || !e.EndTime().After(e.StartTime()) || e.StartTime().Before(terms[0].EndTime().Add(-1e9)) {
		t.Errorf("the election: %v", e)
	}
	h := handovers[0]
	if got := attributes(h); got["tenure.group"] != "billing" || got["tenure.term"] != "2" || got["tenure.to"] != "c" || got["tenure.outcome"] != "done" {
		t.Errorf("the handover: %v", got)
	}
	for _, s := range rec.Ended() {
		if s.SpanContext().SpanID() == h.Parent().SpanID() && !strings.HasSuffix(s.Name(), "/resign") {
			t.Errorf("the handover is part of %s", s.Name())
		}
	}
	if !h.Parent().IsValid() {
		t.Error("the handover is part of nothing")
	}
}

// If several instances trace, only the one that granted a term makes its spans, also for a
// grant to store/remote.
func TestTermSpansOnce(t *testing.T) {
	st := memStore(t)
	var recs [2]*tracetest.SpanRecorder
	var ins [2]*instance
	for i := range ins {
		recs[i] = tracetest.NewSpanRecorder()
		ins[i] = serve(t, st, func(c *Config) {
			c.Tracer = sdk.NewTracerProvider(sdk.WithSpanProcessor(recs[i])).Tracer("test")
		})
	}
	resign(ins[0], lead(ins[0], "billing", "a"))
	for _, in := range ins {
		in.becomes("tenure_groups_without_leader", "1")
	}
	far, err := remote.Open(t.Context(), remote.Config{URLs: []string{ins[1].url}})
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	session, err := far.Open(t.Context(), tenure.Candidate{ID: "b"}, time.Minute, store.OpenOptions{Scope: store.Scope{"billing"}})
	if err != nil {
		t.Fatal(err)
	}
	v, err := far.Read(t.Context(), "billing")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := far.Acquire(t.Context(), session.ID, v.Record); err != nil {
		t.Fatal(err)
	}
	for i, in := range ins {
		in.becomes(`tenure_group_leader{group="billing",leader_node_id="b"}`, "1")
		in.stop()
		terms, elections := ended(recs[i], "term"), ended(recs[i], "election")
		if len(terms) != 1 || attributes(terms[0])["tenure.term"] != fmt.Sprint(i+1) || len(elections) != i {
			t.Errorf("instance %d: %d terms, %d elections: %v", i, len(terms), len(elections), terms)
		}
	}
}

// A transfer by an operator is a handover span with its outcome.
func TestTransferSpan(t *testing.T) {
	rec := tracetest.NewSpanRecorder()
	in := serve(t, memStore(t), func(c *Config) {
		c.Tracer = sdk.NewTracerProvider(sdk.WithSpanProcessor(rec)).Tracer("test")
	})
	lead(in, "billing", "a")
	want[Session](in, 201, "POST", "/sessions", SessionRequest{NodeID: "b", Groups: []string{"*"}})
	want[SteppedDown](in, 202, "POST", "/groups/billing/transfer?to=b&wait=1ms", nil)
	h := ended(rec, "handover")
	if len(h) != 1 || attributes(h[0])["tenure.outcome"] != "waiting" || attributes(h[0])["tenure.to"] != "b" {
		t.Errorf("%v", h)
	}
}
