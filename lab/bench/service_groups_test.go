//go:build linux

package bench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/service"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/remote"
)

// tally counts terms and reports when all of a set have begun.
type tally struct {
	e    *helperRun
	what string
	mu   sync.Mutex
	left int
}

func (c *tally) begun(n int) {
	at := int64(clock.System().Now())
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left -= n; c.left == 0 {
		c.e.say(told{What: c.what, At: []int64{at}})
	}
}

// holdGo leads its groups by a lease.Node over store/remote, and campaigns for the next ones.
func holdGo(e *helperRun) error {
	st, err := remote.Open(e.ctx, remote.Config{URLs: []string{e.URL}})
	if err != nil {
		return err
	}
	defer st.Close()
	n, err := lease.New(st, lease.Config{
		Candidate: tenure.Candidate{ID: e.ID}, Scope: store.Scope{prefixOf(e.Groups), prefixOf(e.Next)},
		Timing: lease.Timing{TTL: e.TTL}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	defer all.Wait()
	lead := func(groups []string, what string) {
		c := &tally{e: e, what: what, left: len(groups)}
		for _, g := range groups {
			all.Go(func() {
				el, err := n.Elector(g)
				if err == nil {
					_, err = el.Campaign(e.ctx)
				}
				if err != nil {
					if e.ctx.Err() == nil {
						e.say(told{Error: err.Error()})
					}
					return
				}
				c.begun(1)
			})
		}
	}
	e.say(told{What: "ready"})
	lead(e.Groups, "leads")
	for range e.in { // the only input is campaign
		lead(e.Next, "succeeded")
	}
	return nil
}

// prefixOf is the scope of groups whose names differ after the last dash only.
func prefixOf(groups []string) string {
	return groups[0][:strings.LastIndexByte(groups[0], '-')+1] + "*"
}

// holdHTTP does the same over HTTP: one session, its campaigns, and keep-alives.
func holdHTTP(e *helperRun) error {
	var session service.Session
	err := e.post("/sessions", service.SessionRequest{NodeID: e.ID, Groups: []string{prefixOf(e.Groups), prefixOf(e.Next)}, TTLMS: e.TTL.Milliseconds()}, &session)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() {
		for tick := time.NewTicker(e.TTL / 4); ; {
			select {
			case <-tick.C:
			case <-e.ctx.Done():
				tick.Stop()
				return
			}
			if err := e.post("/sessions/"+session.Handle+"/keepalive", nil, nil); err != nil && e.ctx.Err() == nil {
				e.say(told{Error: err.Error()})
			}
		}
	})
	lead := func(groups []string, what, wait string) {
		c := &tally{e: e, what: what, left: len(groups)}
		left := map[string]bool{}
		for _, g := range groups {
			left[g] = true
		}
		for len(left) > 0 && e.ctx.Err() == nil {
			var in service.BatchRequest
			for g := range left {
				in.Groups = append(in.Groups, g)
			}
			var out service.Batch
			if err := e.post("/sessions/"+session.Handle+"/campaign"+wait, in, &out); err != nil {
				if e.ctx.Err() == nil {
					e.say(told{Error: err.Error()})
				}
				return
			}
			for _, l := range out.Led {
				delete(left, l.Group)
			}
			c.begun(len(out.Led))
		}
	}
	e.say(told{What: "ready"})
	all.Go(func() { lead(e.Groups, "leads", "") })
	for range e.in {
		all.Go(func() { lead(e.Next, "succeeded", "?wait=60s") })
	}
	return nil
}

func (e *helperRun) post(path string, in, out any) error {
	raw, err := json.Marshal(in)
	if err != nil {
		return err
	}
	if in == nil {
		raw = nil
	}
	ctx, cancel := context.WithTimeout(e.ctx, 2*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL+path, bytes.NewReader(raw))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return err
	case resp.StatusCode >= 300:
		return errors.New(string(body))
	case out == nil:
		return nil
	}
	return json.Unmarshal(body, out)
}

// beats is the number of renewals of the engine so far, over all members.
func (s *serving) beats() (n float64) {
	s.t.Helper()
	for _, url := range s.endpoints {
		n += metric(s.t, s.http, url+"/metrics", "etcd_debugging_lease_renewed_total")
	}
	return n
}

// metric reads a metric without labels.
func metric(t *testing.T, client *http.Client, url, name string) float64 {
	t.Helper()
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			f, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			return f
		}
	}
	t.Fatalf("%s does not say %s", url, name)
	return 0
}

// Ten clients hold 10,000 groups through the service with one heartbeat each, in Go and over
// HTTP. When one is killed, the next candidate leads its thousand groups soon after the TTL.
func TestServiceGroups(t *testing.T) {
	serviceRounds(t)
	groups := sized("TENURE_BENCH_GROUPS", 10_000)
	const clients, ttl = 10, 8 * time.Second
	for _, kind := range []string{goHolder, httpHolder} {
		beats, gone := holders(t, kind, groups, clients, ttl, 3)
		// Beats and their count are not synchronized, so one more may be counted.
		verdict(t, beats <= clients+1 && beats >= 1, fmt.Sprintf("service: %d groups, %d clients (%s)", groups, clients, kind), fmt.Sprintf("%.1f beats in a beat interval", beats), fmt.Sprintf("<= %d", clients+1))
		verdict(t, gone <= ttl+2*time.Second, fmt.Sprintf("service: one is killed, TTL %v (%s)", ttl, kind), fmt.Sprintf("its %d groups are led again after %.2f s", groups/clients, gone.Seconds()), fmt.Sprintf("<= %v", ttl+2*time.Second))
	}
}

// The same, small enough to run with every change: the number of beats does not grow with the
// groups, and the next candidate leads every group of a killed client.
func TestGroupsAreHeld(t *testing.T) {
	const clients = 5
	if beats, _ := holders(t, httpHolder, 500, clients, 4*time.Second, 1); beats > 3*clients {
		t.Errorf("%.0f beats in a beat interval of %d clients", beats, clients)
	}
}

// holders makes clients hold groups, and kills one. It returns the number of beats per beat
// interval, and how long it took until the last group was led again.
func holders(t *testing.T, kind string, groups, clients int, ttl time.Duration, intervals int) (beats float64, gone time.Duration) {
	t.Helper()
	s := newServing(t, 1)
	each := groups / clients
	of := func(i int) (names []string) {
		for g := range each {
			names = append(names, fmt.Sprintf("shard-%d-%d", i%clients, g))
		}
		return names
	}
	var all []*helper
	began := time.Now()
	for i := range clients {
		all = append(all, task{Kind: kind, ID: fmt.Sprintf("client-%d", i), URL: s.URL, Groups: of(i), Next: of(i + 1), TTL: ttl}.start(t))
	}
	for _, a := range all {
		a.await("leads")
	}
	progress("%s: %d groups are led after %v", kind, groups, time.Since(began).Round(time.Millisecond))
	first := s.beats()
	sleep(time.Duration(intervals) * ttl / 4)
	beats = (s.beats() - first) / float64(intervals)

	const killed, next = 4, 3
	all[next].tell("stand in line", "")
	sleep(500 * time.Millisecond)
	at := clock.System().Now()
	all[killed].kill()
	gone = clock.Instant(all[next].await("succeeded").At[0]).Sub(at)
	led, nobody := s.leaders(fmt.Sprintf("shard-%d-", killed))
	if n := led[fmt.Sprintf("client-%d", next)]; n != each || nobody > 0 {
		t.Errorf("the next in line leads %d of %d groups, nobody %d", n, each, nobody)
	}
	for _, a := range all {
		if a != all[killed] {
			a.kill()
		}
	}
	return beats, gone
}

// leaders counts the groups of a prefix by the node that leads them.
func (s *serving) leaders(prefix string) (led map[string]int, nobody int) {
	s.t.Helper()
	led = map[string]int{}
	for after := ""; ; {
		var page service.Groups
		if _, err := s.call(s.t.Context(), http.MethodGet, s.URL+"/groups?limit=1000&prefix="+prefix+"&after="+after, nil, &page); err != nil {
			s.t.Fatal(err)
		}
		for _, g := range page.Groups {
			if g.LeaderNodeID == "" {
				nobody++
				continue
			}
			led[g.LeaderNodeID]++
		}
		if after = page.Next; after == "" {
			return led, nobody
		}
	}
}
