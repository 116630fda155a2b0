package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure/server/service"
)

// floodEnv is how long the flood lasts, such as 5m.
const floodEnv = "TENURE_FLOOD"

// 300 connections campaign in a loop, for new groups and for led ones, with and without
// waiting. None of 20 leaders loses its lease of 3 s, and they can resign meanwhile.
func TestFlood(t *testing.T) {
	lasts := 6 * time.Second
	if s := os.Getenv(floodEnv); s != "" {
		var err error
		if lasts, err = time.ParseDuration(s); err != nil {
			t.Fatalf("%s=%q", floodEnv, s)
		}
	}
	const leaders, connections, ttl = 20, 300, 3 * time.Second
	p := startServe(t, "--data-dir", filepath.Join(t.TempDir(), "data"), "--ttl", ttl.String())
	over, cancel := context.WithCancel(t.Context())
	defer cancel()

	var all sync.WaitGroup
	var lost atomic.Int64
	var mu sync.Mutex
	var took []time.Duration
	var elected sync.WaitGroup
	elected.Add(leaders)
	for i := range leaders {
		all.Go(func() {
			c := newCaller(p.ready.URL)
			defer c.close()
			group, node := fmt.Sprintf("led-%d", i), fmt.Sprintf("leader-%d", i)
			var l service.Leading
			var sent time.Time
			for status, begun := 0, time.Now(); status != 200; { // on a busy machine the service may refuse at first
				if time.Since(begun) > 30*time.Second {
					t.Errorf("leader %d is not elected: %d", i, status)
					elected.Done()
					return
				}
				sent = time.Now()
				status, _ = c.post(group+"/campaign", ttl, service.CampaignRequest{NodeID: node, Instance: node + "-of-this-test"}, &l)
			}
			elected.Done()
			renew := service.RenewRequest{NodeID: node, Term: l.Term, Handle: l.Handle}
			for over.Err() == nil {
				time.Sleep(ttl / 3)
				now := time.Now()
				// A leader retries a failed renewal until its lease is over.
				status, err := c.post(group+"/renew", time.Second, renew, &service.Renewed{})
				for status != 200 && status != 409 && time.Since(sent) < ttl {
					time.Sleep(50 * time.Millisecond)
					now = time.Now()
					status, err = c.post(group+"/renew", time.Second, renew, &service.Renewed{})
				}
				mu.Lock()
				took = append(took, time.Since(now))
				mu.Unlock()
				if status != 200 || time.Since(sent) > ttl {
					lost.Add(1)
					t.Errorf("leader %d has lost its lease %v after its last renewal was sent: %d, %v", i, time.Since(sent), status, err)
					return
				}
				sent = now
			}
			status, err := c.post(group+"/resign", ttl, service.ResignRequest{NodeID: node, Term: l.Term, Handle: l.Handle}, &service.Resigned{})
			if status != 200 {
				t.Errorf("leader %d cannot resign: %d, %v", i, status, err)
			}
		})
	}
	elected.Wait()

	flood, end := context.WithCancel(t.Context())
	var statuses sync.Map
	var flooding sync.WaitGroup
	for i := range connections {
		flooding.Go(func() {
			c := newCaller(p.ready.URL)
			defer c.close()
			for n := 0; flood.Err() == nil; n++ {
				path := fmt.Sprintf("led-%d/campaign", n%leaders)
				switch n % 3 {
				case 1:
					path = fmt.Sprintf("new-%d-%d/campaign", i, n)
				case 2:
					path += "?wait=50ms"
				}
				status, _ := c.post(path, 5*time.Second, service.CampaignRequest{NodeID: fmt.Sprintf("flood-%d-%d", i, n)}, &service.Leading{})
				count, _ := statuses.LoadOrStore(status, new(atomic.Int64))
				count.(*atomic.Int64).Add(1)
			}
		})
	}
	time.AfterFunc(lasts, cancel)
	all.Wait()
	end()
	flooding.Wait()
	var answers []string
	statuses.Range(func(status, n any) bool {
		answers = append(answers, fmt.Sprintf("%d: %d", status, n.(*atomic.Int64).Load()))
		return true
	})
	slices.Sort(answers)
	slices.Sort(took)
	if len(took) == 0 {
		t.Fatal("nothing was renewed")
	}
	t.Logf("%d of %d leases lost in %v; renewals: p50 %v, p99 %v, longest %v; answers to campaigns: %s",
		lost.Load(), leaders, lasts, took[len(took)/2], took[len(took)*99/100], took[len(took)-1], strings.Join(answers, ", "))
}

// caller has one connection.
type caller struct {
	url  string
	http *http.Client
}

func newCaller(url string) *caller {
	return &caller{url, &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1}}}
}

func (c *caller) close() { c.http.CloseIdleConnections() }

// post returns status 0 if there was no answer.
func (c *caller) post(path string, within time.Duration, in, out any) (status int, err error) {
	body, err := json.Marshal(in)
	if err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/v1/groups/"+path, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	if resp.StatusCode != http.StatusOK {
		return resp.StatusCode, fmt.Errorf("%s", text)
	}
	return resp.StatusCode, json.Unmarshal(text, out)
}
