package main

import (
	"bytes"
	"context"
	crand "crypto/rand"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/server/feed"
	"github.com/tenurehq/tenure/server/service"
)

// grant is a term, seen from the node that has it.
type grant struct {
	node, handle string
	until        time.Time // until when it believes that it leads; zero: no longer
}

// witness records what nodes, watchers and histories see of one group, and reports
// contradictions.
type witness struct {
	t     *testing.T
	group string

	mu      sync.Mutex
	highest fence.Token
	grants  map[fence.Token]*grant
	history map[fence.Token]string // the holder of each token
	told    map[string]int         // events of the watcher
	holders map[fence.Token]string // holders in the events of the watcher
}

// seen is the highest token that any node got.
func (w *witness) seen() fence.Token {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.highest
}

// granted records a term that a node got, in answer to a call that was sent when the highest
// token was another.
func (w *witness) granted(node string, l service.Leading, sent time.Time, before fence.Token) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	was := w.grants[l.Term]
	switch {
	case was != nil && (was.node != node || was.handle != l.Handle):
		w.t.Errorf("%s: token %d was given to %s and to %s", w.group, l.Term, was.node, node)
	case l.Term < before:
		w.t.Errorf("%s: token %d was given after %d", w.group, l.Term, before)
	}
	for token, g := range w.grants {
		if g.node != node && now.Before(g.until) {
			w.t.Errorf("%s: %s leads with token %d while %s believes to with token %d for another %v", w.group, node, l.Term, g.node, token, g.until.Sub(now))
		}
	}
	w.highest = max(w.highest, l.Term)
	w.grants[l.Term] = &grant{node: node, handle: l.Handle, until: sent.Add(time.Duration(l.HeldMS+l.TTLMS) * time.Millisecond)}
}

// believes sets until when a node believes that it leads.
func (w *witness) believes(term fence.Token, until time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.grants[term].until = until
}

// reads takes a page of the history: its tokens must fall in steps of one and agree with
// earlier pages.
func (w *witness) reads(h service.History) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, term := range h.Terms {
		if i > 0 && term.Term != h.Terms[i-1].Term-1 {
			w.t.Errorf("%s: the history has %d after %d", w.group, term.Term, h.Terms[i-1].Term)
		}
		if was, ok := w.history[term.Term]; ok && was != term.NodeID {
			w.t.Errorf("%s: the history has token %d for %s, and had it for %s", w.group, term.Term, term.NodeID, was)
		}
		w.history[term.Term] = term.NodeID
	}
}

func (w *witness) hears(e feed.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if e.State == "unknown" || e.Snapshot {
		return
	}
	w.told[fmt.Sprint(e.State, e.Token)]++
	if e.State == "led" {
		w.holders[e.Token] = e.Holder
	}
}

// complete compares nodes, watcher and history at the end: up to the last token none may miss
// a term, and they must agree.
func (w *witness) complete(last fence.Token) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for token := fence.Token(1); token <= last; token++ {
		who, ok := w.history[token]
		if !ok {
			w.t.Errorf("%s: the history never had token %d", w.group, token)
		}
		if g := w.grants[token]; g != nil && g.node != who {
			w.t.Errorf("%s: token %d was given to %s, and the history has %s", w.group, token, g.node, who)
		}
		if n := w.told[fmt.Sprint("led", token)]; n != 1 || w.holders[token] != who {
			w.t.Errorf("%s: led %d was told %d times, of %s; the history has %s", w.group, token, n, w.holders[token], who)
		}
		if n := w.told[fmt.Sprint("vacant", token)]; n != 1 && token < last {
			w.t.Errorf("%s: vacant %d was told %d times", w.group, token, n)
		}
	}
}

// hasTold reports whether the watcher got the beginning of a term.
func (w *witness) hasTold(token fence.Token) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.told[fmt.Sprint("led", token)] > 0
}

// bases are the URLs of the instances, tried in any order.
type bases []string

// call calls one instance after the other until one has a definite answer.
func (b bases) call(ctx context.Context, method, path string, in, out any) int {
	body, err := json.Marshal(in)
	if err != nil {
		return 0
	}
	for _, i := range rand.Perm(len(b)) {
		try, cancel := context.WithTimeout(ctx, 5*time.Second)
		status := func() int {
			defer cancel()
			req, err := http.NewRequestWithContext(try, method, b[i]+path, bytes.NewReader(body))
			if err != nil {
				return 0
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return 0
			}
			defer func() { _ = resp.Body.Close() }()
			if json.NewDecoder(resp.Body).Decode(out) != nil {
				return 0
			}
			return resp.StatusCode
		}()
		if status != 0 && status < 500 {
			return status
		}
	}
	return 0
}

const killedTTL = 2 * time.Second

// stand runs a node: it campaigns, renews for a while, counting its TTL from when it sent the
// call, and resigns or just stops.
func (b bases) stand(ctx context.Context, node string, groups []*witness) {
	instance := crand.Text()
	for ctx.Err() == nil {
		w := groups[rand.IntN(len(groups))]
		path := "/v1/groups/" + w.group + "/"
		before, sent := w.seen(), time.Now()
		var l service.Leading
		if b.call(ctx, "POST", path+"campaign?wait=300ms", service.CampaignRequest{NodeID: node, TTLMS: killedTTL.Milliseconds(), Instance: instance}, &l) != 200 {
			pause(ctx, 30*time.Millisecond)
			continue
		}
		w.granted(node, l, sent, before)
		if b.hold(ctx, w, node, l, sent.Add(time.Duration(l.HeldMS+l.TTLMS)*time.Millisecond)) && rand.IntN(8) > 0 {
			w.believes(l.Term, time.Time{})
			_ = b.call(ctx, "POST", path+"resign", service.ResignRequest{NodeID: node, Term: l.Term, Handle: l.Handle}, &service.Resigned{})
		}
	}
}

// hold renews for a while, and reports whether the node still leads.
func (b bases) hold(ctx context.Context, w *witness, node string, l service.Leading, until time.Time) bool {
	for end := time.Now().Add(time.Duration(rand.IntN(1200)) * time.Millisecond); time.Now().Before(end); pause(ctx, 200*time.Millisecond) {
		sent := time.Now()
		try, cancel := context.WithDeadline(ctx, until)
		var r service.Renewed
		status := b.call(try, "POST", "/v1/groups/"+w.group+"/renew", service.RenewRequest{NodeID: node, Term: l.Term, Handle: l.Handle}, &r)
		cancel()
		switch {
		case time.Now().After(until) || ctx.Err() != nil:
			return false
		case status == 200:
			until = sent.Add(time.Duration(r.TTLMS) * time.Millisecond)
			w.believes(l.Term, until)
		case status == 409:
			w.believes(l.Term, time.Time{})
			return false
		}
	}
	return true
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// watch watches both groups through every interruption, at any instance that answers.
func (b bases) watch(ctx context.Context, t *testing.T, witnesses []*witness, begun chan<- struct{}) {
	query, by := "?", make(map[string]*witness)
	for _, w := range witnesses {
		query += "group=" + w.group + "&"
		by[w.group] = w
	}
	last, told := "", 0
	for ctx.Err() == nil {
		follow(ctx, b[rand.IntN(len(b))]+"/v1/watch"+strings.TrimSuffix(query, "&"), last, func(id string, kind feed.Kind, e feed.Event) bool {
			if kind == feed.Reset {
				t.Error("the watcher was reset: it has missed something")
			}
			if id != "" {
				last = id
			}
			by[e.Group].hears(e)
			if told++; told == len(witnesses) {
				close(begun) // the snapshot is complete
			}
			return rand.IntN(20) > 0 // sometimes it goes to another instance by itself
		})
		pause(ctx, 20*time.Millisecond)
	}
}

// Two instances of the service and their engine, each a process, are killed at random
// instants, TENURE_ROUNDS times, while nodes campaign and renew: no token is granted twice or
// after a higher one, no two nodes believe at once, a watcher that resumes elsewhere gets
// each change once, and the history is complete.
func TestServiceAndEngineKilled(t *testing.T) {
	e := enginetest.Cluster(t, 1)
	store := "etcd://" + e.Members[0].Addr()
	services := []*serveProcess{startServe(t, "--store", store), startServe(t, "--store", store)}
	var at bases
	for _, s := range services {
		at = append(at, s.ready.URL)
	}
	var witnesses []*witness
	for _, g := range []string{"billing", "shipping"} {
		witnesses = append(witnesses, &witness{
			t: t, group: g, grants: make(map[fence.Token]*grant), history: make(map[fence.Token]string),
			told: make(map[string]int), holders: make(map[fence.Token]string),
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 55*time.Minute)
	var work sync.WaitGroup
	defer work.Wait()
	defer cancel()
	begun := make(chan struct{})
	work.Go(func() { at.watch(ctx, t, witnesses, begun) })
	select {
	case <-begun:
	case <-time.After(time.Minute):
		t.Fatal("no snapshot came")
	}
	nodes, stop := context.WithCancel(ctx)
	defer stop()
	var standing sync.WaitGroup
	for i := range 4 {
		standing.Go(func() { at.stand(nodes, fmt.Sprint("node-", i), witnesses) })
	}
	read := func(w *witness) {
		t.Helper()
		var h service.History
		within(t, "the history is read", func() bool { return at.call(ctx, "GET", "/v1/groups/"+w.group+"/history?limit=1000", nil, &h) == 200 })
		w.reads(h)
	}
	victims := map[string]int{}
	for range rounds(t, 3) {
		pause(ctx, time.Duration(rand.IntN(800))*time.Millisecond)
		which := rand.IntN(6)
		if which >= 2 { // the engine: alone, with one instance, or with all
			e.Members[0].Kill()
			victims["engine"]++
		}
		var dead []*serveProcess
		for i, s := range services {
			if which == i || which == 3+i || which == 5 {
				addr := s.ready.Addr
				s.kill()
				s.ready.Addr = addr
				dead = append(dead, s)
				victims["service"]++
			}
		}
		if which >= 2 {
			e.Members[0].Restart()
		}
		for _, s := range dead {
			s.launch(s.ready.Addr)
		}
		// Wait for new elections before the next kill.
		for _, w := range witnesses {
			before := w.seen()
			within(t, "somebody leads "+w.group, func() bool { return w.seen() > before })
			read(w)
		}
	}
	stop()
	standing.Wait()
	terms := fence.Token(0)
	for _, w := range witnesses {
		var l service.Leading
		within(t, "the last takes over", func() bool {
			return at.call(ctx, "POST", "/v1/groups/"+w.group+"/campaign", service.CampaignRequest{NodeID: "last", Instance: "the-last-of-them-all"}, &l) == 200
		})
		within(t, "the watcher is told", func() bool { return w.hasTold(l.Term) })
		read(w)
		w.complete(l.Term)
		terms += l.Term
	}
	t.Logf("%d terms, killed %v", terms, victims)
}

func within(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if f() {
			return
		}
	}
	t.Fatalf("it did not happen: %s", what)
}
