//go:build linux

package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/check"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/lab/load"
	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
)

// fleetRounds is the number of rounds; without it the benchmark is skipped.
func fleetRounds(t *testing.T) int {
	t.Helper()
	rounds, err := strconv.Atoi(os.Getenv("TENURE_BENCH_FLEET"))
	if err != nil {
		t.Skip("a benchmark: make bench-fleet")
	}
	return rounds
}

func verdict(t *testing.T, ok bool, name, value, must string) {
	t.Helper()
	word := "ok"
	if !ok {
		word = "short"
		t.Fail()
	}
	fmt.Printf("%-58s  %-46s  %-28s  %s\n", name, value, must, word)
}

// handOver transfers the group to the next node and returns the gap between the last
// attempt to write of the old leader and the first of the new one.
func (r *rig) handOver() time.Duration {
	r.t.Helper()
	ctx := r.t.Context()
	old, was := r.leader(0)
	ids := make([]string, 0, len(r.nodes))
	for id := range r.nodes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	next := ids[(slices.Index(ids, old)+1)%len(ids)]
	if _, err := r.call(ctx, http.MethodPost, r.nodes[old].URL+"/transfer?to="+next, nil, nil); err != nil {
		r.t.Fatal(err)
	}
	now, is := r.leader(uint64(was.FenceToken))
	began := r.attempt(now, is.FenceToken, true)
	// Wait, so that late writes of the old leader are seen.
	sleep(300 * time.Millisecond)
	return began.Sub(r.attempt(old, was.FenceToken, false))
}

// attempt is the first or the last attempt to write of a node with a token.
func (r *rig) attempt(id string, token fence.Token, first bool) clock.Instant {
	r.t.Helper()
	var found clock.Instant
	for deadline := time.Now().Add(30 * time.Second); found == 0 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		var a labapi.Attempts
		if _, err := r.call(r.t.Context(), http.MethodGet, r.nodes[id].URL+"/lab/attempts", nil, &a); err != nil {
			r.t.Fatal(err)
		}
		for _, at := range a.Items {
			if at.Token == token && (found == 0 || !first) {
				found = at.At
			}
		}
	}
	if found == 0 {
		r.t.Fatalf("%s made no attempt with token %d", id, token)
	}
	return found
}

// Handovers under load: the old leader's last attempt to write comes shortly before the new
// one's first. With the planted bug (release before the work has stopped) it does not.
func TestFleetHandover(t *testing.T) {
	rounds := fleetRounds(t)
	gaps := func(node string, rounds int, args ...string) series {
		r := newRig(t, rigConfig{node: node, nodes: 3, ttl: 3 * time.Second, args: args})
		r.leader(0)
		stop := r.hammer(4)
		defer stop()
		var all series
		for range rounds {
			sleep(200 * time.Millisecond)
			all = append(all, r.handOver())
		}
		return all
	}
	good := gaps("labfleet", rounds)
	verdict(t, good.at(0) >= 0, fmt.Sprintf("fleet: handover, %d rounds: least gap", len(good)), ms(good.at(0)), ">= 0")
	verdict(t, good.at(0.5) <= 20*time.Millisecond, "fleet: handover gap, p50", fmt.Sprintf("%s (p95 %s, max %s)", ms(good.at(0.5)), ms(good.at(0.95)), ms(good.at(1))), "<= 20 ms")
	// Work that takes a while to stop makes a difference only with the bug.
	slow := []string{"--stop-delay", "100ms"}
	control := gaps("labfleet-planted", max(5, rounds/5), slow...)
	verdict(t, control.at(0) >= 0, fmt.Sprintf("fleet: work that stops slowly, %d rounds: least gap", len(control)), ms(control.at(0)), ">= 0")
	bad := gaps("labfleet-planted", max(5, rounds/5), append(slow, "--plant", "release-before-stop")...)
	verdict(t, bad.at(0) < 0, fmt.Sprintf("fleet: planted release-before-stop, %d rounds: least gap", len(bad)), ms(bad.at(0)), "< 0 is seen")
}

// A handover with 10 million pending jobs takes no longer than with 10 thousand. The two fleets
// are measured alternately.
func TestFleetBigWorkSet(t *testing.T) {
	rounds := fleetRounds(t)
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	big := 10_000_000
	if n, err := strconv.Atoi(os.Getenv("TENURE_BENCH_JOBS")); err == nil {
		big = n
	}
	fleet := func(jobs int) *rig {
		db := filepath.Join(t.TempDir(), "ledger.db")
		began := time.Now()
		out, err := exec.CommandContext(t.Context(), filepath.Join(bin, "lab"), "jobs", "--db", db, "--n", strconv.Itoa(jobs)).CombinedOutput()
		if err != nil {
			t.Fatalf("lab jobs: %v\n%s", err, out)
		}
		progress("%d jobs in %v", jobs, time.Since(began).Round(100*time.Millisecond))
		r := newRig(t, rigConfig{nodes: 2, ttl: 3 * time.Second, db: db})
		r.leader(0)
		return r
	}
	fleets := []*rig{fleet(10_000), fleet(big)}
	gaps := make([]series, len(fleets))
	for range rounds {
		for i, r := range fleets {
			sleep(200 * time.Millisecond)
			stop := r.hammer(2)
			gaps[i] = append(gaps[i], r.handOver())
			stop()
		}
	}
	small, large := gaps[0].at(0.5), gaps[1].at(0.5)
	verdict(t, float64(large) <= 1.2*float64(small) || large <= small+10*time.Millisecond,
		fmt.Sprintf("fleet: handover with %d jobs, p50", big), fmt.Sprintf("%s, %.2f × of %s with 10 thousand", ms(large), float64(large)/float64(small), ms(small)), "<= 1.2 × or + 10 ms")
}

// When leaders are killed the other nodes still write records, and every instant of every job
// fires once.
func TestFleetFailover(t *testing.T) {
	rounds := max(1, fleetRounds(t)/5)
	r := newRig(t, rigConfig{nodes: 3, ttl: 2 * time.Second, args: []string{"--tick", "250ms"}})
	ctx := t.Context()
	id, s := r.leader(0)
	const jobs = 5
	for i := range jobs {
		job := api.Job{Key: fmt.Sprintf("job-%d", i), Schedule: "@every 1s", Misfire: "all"}
		if _, err := r.call(ctx, http.MethodPost, r.nodes[id].URL+"/jobs", job, nil); err != nil {
			t.Fatal(err)
		}
	}
	var calm, failing series
	for round := range rounds {
		calm = append(calm, r.records(id, 2*time.Second)...)
		r.kill(id)
		failing = append(failing, r.records("", r.ttl+2*time.Second)...)
		killed := id
		id, s = r.leader(uint64(s.FenceToken))
		r.start(killed)
		progress("failover %d of %d: %s leads with token %d", round+1, rounds, id, s.FenceToken)
	}
	p99, base := failing.at(0.99), calm.at(0.99)
	verdict(t, p99 <= 3*base || p99 <= base+20*time.Millisecond, fmt.Sprintf("fleet: %d record writes during %d failovers, p99", len(failing), rounds),
		fmt.Sprintf("%s, %.2f × of %s in calm", ms(p99), float64(p99)/float64(base), ms(base)), "<= 3 × or + 20 ms, no error")
	sleep(3 * time.Second)
	twice, missing, fired := r.firings(ctx)
	verdict(t, twice == 0 && missing == 0 && fired > jobs*rounds, fmt.Sprintf("fleet: firings over %d failovers", rounds), fmt.Sprintf("%d fired, %d twice, %d missing", fired, twice, missing), "0 twice, 0 missing")
}

// records writes records through all nodes but one, and returns how long each took.
func (r *rig) records(but string, during time.Duration) series {
	var mu sync.Mutex
	var all series
	var writers sync.WaitGroup
	for id, p := range r.nodes {
		if id == but {
			continue
		}
		writers.Go(func() {
			for began := time.Now(); time.Since(began) < during; time.Sleep(5 * time.Millisecond) {
				at := time.Now()
				_, err := r.call(context.Background(), http.MethodPut, p.URL+"/records/"+id, map[string]int64{"at": at.UnixNano()}, nil)
				took := time.Since(at)
				mu.Lock()
				if err != nil {
					r.t.Errorf("a record: %v", err)
				}
				all = append(all, took)
				mu.Unlock()
			}
		})
	}
	writers.Wait()
	return all
}

// firings counts the firings that the ledger has twice and those that are missing.
func (r *rig) firings(ctx context.Context) (twice, missing, fired int) {
	r.t.Helper()
	byJob := map[string][]int64{}
	c := r.client()
	for after := ""; ; {
		page, err := c.Firings(ctx, "billing", false, after, ledgerapi.MaxPage)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, f := range page.Items {
			byJob[f.Job] = append(byJob[f.Job], f.AtMS)
		}
		if after = page.Next; after == "" {
			break
		}
	}
	for _, at := range byJob {
		slices.Sort(at)
		fired += len(at)
		for i := 1; i < len(at); i++ {
			switch d := at[i] - at[i-1]; {
			case d == 0:
				twice++
			case d != 1000:
				missing += int(d/1000) - 1
			}
		}
	}
	return twice, missing, fired
}

// Nine nodes on two cores, without faults: the leader does not change.
func TestFleetNineNodes(t *testing.T) {
	fleetRounds(t)
	calm := 5 * time.Minute
	if d, err := time.ParseDuration(os.Getenv("TENURE_BENCH_CALM")); err == nil {
		calm = d
	}
	r := newRig(t, rigConfig{nodes: 9, ttl: 3 * time.Second})
	_, before := r.leader(0)
	sleep(calm)
	_, after := r.leader(0)
	verdict(t, before.FenceToken == after.FenceToken, fmt.Sprintf("fleet: 9 nodes, TTL 3 s, %v without faults", calm), fmt.Sprintf("%d failovers", after.FenceToken-before.FenceToken), "0")
}

// POST /next, one number per call, durable and fenced, on 256 connections. It is compared with
// a bare handler that answers a constant and with a fleet that commits each call separately,
// by the same callers on the same cores, alternately.
func TestFleetNext(t *testing.T) {
	fleetRounds(t)
	const turns, turn = 3, 6 * time.Second
	shared := newRig(t, rigConfig{nodes: 3, ttl: 3 * time.Second})
	alone := newRig(t, rigConfig{nodes: 1, ttl: 3 * time.Second, args: []string{"--batch", "1"}})
	bare := shared.run("lab", "bare")
	shared.leader(0)
	alone.leader(0)
	run := func(n int, bare bool, urls ...string) load.Report {
		t.Helper()
		report, err := load.Run(t.Context(), load.Config{URLs: urls, For: turn, N: n, Bare: bare})
		if err != nil {
			t.Fatal(err)
		}
		if report.Errors() > 0 || report.Disordered > 0 {
			t.Errorf("%d calls failed, %d out of order: %s", report.Errors(), report.Disordered, report.FirstTrouble)
		}
		return report
	}
	var urls []string
	for _, p := range shared.nodes {
		urls = append(urls, p.URL)
	}
	var plain, ratios, p99 []float64
	var rate float64
	for range turns {
		b, s := run(1, true, bare.URL), run(1, false, urls...)
		plain = append(plain, b.CallsPerSec)
		ratios = append(ratios, s.CallsPerSec/b.CallsPerSec)
		p99 = append(p99, float64(s.At(99).Microseconds())/1000)
		rate = max(rate, s.CallsPerSec)
	}
	each := run(1, false, alone.nodes["node-1"].URL)
	many := run(100, false, urls...)
	middle := func(of []float64) float64 { return slices.Sorted(slices.Values(of))[len(of)/2] }
	verdict(t, middle(ratios) >= 0.5, "fleet: /next beside a bare handler, median of 3", fmt.Sprintf("%.2f × of %.0f calls/s", middle(ratios), middle(plain)), ">= 0.5 × (aim 0.8)")
	verdict(t, rate >= 10*each.CallsPerSec, "fleet: /next beside each call alone", fmt.Sprintf("%.0f, %.1f × of %.0f calls/s", rate, rate/each.CallsPerSec, each.CallsPerSec), ">= 10 ×")
	verdict(t, middle(p99) <= 60, "fleet: /next at full speed, p99", fmt.Sprintf("%.1f ms", middle(p99)), "<= 60 ms")
	verdict(t, many.IDsPerSec >= 500_000, "fleet: /next?n=100", fmt.Sprintf("%.0f ids/s", many.IDsPerSec), ">= 500000 ids/s")
}

// Two million calls while leaders are killed twenty times: the numbers increase in the order
// of time and none is handed out twice, by the callers' histories and by the ledger's table.
func TestFleetTwoMillion(t *testing.T) {
	fleetRounds(t)
	calls, kills, rate := int64(2_020_000), 20, 8000.0
	if n, err := strconv.ParseInt(os.Getenv("TENURE_BENCH_CALLS"), 10, 64); err == nil {
		kills = int(max(1, n*int64(kills)/calls))
		calls = n
	}
	r := newRig(t, rigConfig{nodes: 3, ttl: 2 * time.Second})
	id, s := r.leader(0)
	dir := t.TempDir()
	w, err := history.Create(dir, "calls")
	if err == nil {
		err = w.Write(history.Run{Experiment: "two million", Group: "billing", Checks: []string{"sequence", "linearizable", "ledger"}})
	}
	if err != nil {
		t.Fatal(err)
	}
	var urls []string
	for _, p := range r.nodes {
		urls = append(urls, p.URL)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var report load.Report
	loaded := make(chan error, 1)
	go func() {
		var err error
		report, err = load.Run(ctx, load.Config{URLs: urls, Rate: rate, Count: calls, For: time.Hour, Calls: w})
		loaded <- err
	}()
	every := time.Duration(float64(calls) / rate / float64(kills+1) * float64(time.Second))
	for kill := range kills {
		sleep(max(every-r.ttl-time.Second, time.Second))
		r.kill(id)
		killed := id
		id, s = r.leader(uint64(s.FenceToken))
		r.start(killed)
		progress("kill %d of %d: %s leads with token %d", kill+1, kills, id, s.FenceToken)
	}
	if err := errors.Join(<-loaded, w.Close(), history.WriteManifest(dir)); err != nil {
		t.Fatal(err)
	}
	_ = report.Print(os.Stdout)
	held, err := check.Dir(t.Context(), dir, check.Options{DB: r.db})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range held.Verdicts {
		if v.Result != "pass" {
			t.Error(v)
		}
	}
	seen, _ := held.Verdict("sequence")
	kept, _ := held.Verdict("ledger")
	verdict(t, held.Passed() && report.Disordered == 0 && held.Callers.Calls == report.Calls && report.Calls > calls*9/10 && held.Callers.Tokens > kills,
		fmt.Sprintf("fleet: %d calls at %.0f/s across %d kill -9", report.Calls, rate, kills),
		fmt.Sprintf("%d breaches by callers, %d by lag(), %d tokens, longest gap %.0f ms, %d unknown", seen.Violations, kept.Violations, held.Callers.Tokens, held.Callers.SilenceMS, report.Unknown), "0 breaches")
}
