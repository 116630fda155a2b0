//go:build linux

package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/server/service"
)

// changing is a group whose leader changes while watchers watch it.
type changing struct {
	*serving
	group    string
	metadata map[string]string
	leading  service.Leading
}

func (c *changing) lead() {
	c.post("/groups/"+c.group+"/campaign", service.CampaignRequest{NodeID: "bench", TTLMS: 300_000, Metadata: c.metadata}, &c.leading)
}

func (c *changing) resign() {
	c.post("/groups/"+c.group+"/resign", service.ResignRequest{NodeID: "bench", Term: c.leading.Term, Handle: c.leading.Handle}, nil)
}

// told ends the term and begins the next. It returns how long each watcher waited for both
// events, from when the change was requested.
func (c *changing) told(w *helper, n int) series {
	c.t.Helper()
	return append(
		c.heard(w, n, fmt.Sprintf(`"state":"vacant","term":%d,`, c.leading.Term), c.resign),
		c.heard(w, n, fmt.Sprintf(`"state":"led","term":%d,`, c.leading.Term+1), c.lead)...)
}

// heard measures how long watchers wait for the effect of f.
func (c *changing) heard(w *helper, n int, needle string, f func()) (s series) {
	c.t.Helper()
	w.tell("expect", needle)
	w.await("expecting")
	since := clock.System().Now()
	f()
	a := w.await("heard")
	if len(a.At) != n || a.Text != "0" {
		c.t.Errorf("%d of %d watchers were told, %s were cut off", len(a.At), n, a.Text)
	}
	for _, at := range a.At {
		s = append(s, clock.Instant(at).Sub(since))
	}
	return s
}

// rss is the memory of a process in bytes.
func rss(t *testing.T, pid int) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatal("the system does not say how much memory a process has")
	return 0
}

// 10,000 watchers of one group get each change about as soon as from a bare broadcaster that
// sends the same bytes to as many. They need little memory, and a thousand further watchers
// that never read do not delay them.
func TestServiceWatchers(t *testing.T) {
	rounds := max(3, serviceRounds(t)/2)
	n, idle := sized("TENURE_BENCH_WATCHERS", 10_000), sized("TENURE_BENCH_SLEEPERS", 1000)
	c := &changing{serving: newServing(t, 1), group: "watched", metadata: map[string]string{"zone": strings.Repeat("x", 100)}}
	c.lead()
	before := rss(t, c.PID)
	url := c.URL + "/groups/" + c.group + "/watch"
	through := task{Kind: watchers, URL: url, N: n}.start(t)
	bare := task{Kind: bareBroadcast}.start(t)
	beside := task{Kind: watchers, URL: bare.url + "/", N: n}.start(t)
	said := 0
	say := func() {
		frame := fmt.Appendf(nil, "event: LEADER_CHANGED\nid: %s\ndata: {\"group\":\"watched\",\"state\":\"led\",\"term\":%d,\"leader_node_id\":\"bench\",\"metadata\":{\"zone\":%q},\"since_ms\":1700000000000}\n\n",
			strings.Repeat("c", 90), said, c.metadata["zone"])
		resp, err := c.http.Post(bare.url, "text/plain", bytes.NewReader(frame))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	twice := func() (s series) { // two events, as for a change of leader
		for range 2 {
			said++
			s = append(s, c.heard(beside, n, fmt.Sprintf(`"term":%d,`, said), say)...)
		}
		return s
	}
	var ours, theirs []float64
	var all, bares series
	spent := [2]time.Duration{cpu(t, c.PID), cpu(t, bare.proc.Cmd.Process.Pid)}
	for range rounds {
		b, o := twice(), c.told(through, n)
		theirs, ours = append(theirs, millis(b.at(0.99))), append(ours, millis(o.at(0.99)))
		bares, all = append(bares, b...), append(all, o...)
	}
	each := func(pid int, before time.Duration, told int) float64 {
		return millis(cpu(t, pid)-before) * 1000 / float64(told)
	}
	progress("CPU time of a server to tell a watcher: %.1f µs, of a bare broadcaster: %.1f µs", each(c.PID, spent[0], len(all)), each(bare.proc.Cmd.Process.Pid, spent[1], len(bares)))
	for name, s := range map[string]series{"through the service": all, "by a bare broadcaster": bares} {
		progress("%d watchers told %s: first %s, p50 %s, p99 %s, last %s", n, name, ms(s.at(0)), ms(s.at(0.5)), ms(s.at(0.99)), ms(s.at(1)))
	}
	memory := (rss(t, c.PID) - before) / int64(n)
	ratio := median(ours) / median(theirs)
	verdict(t, ratio <= 1.3, fmt.Sprintf("service: %d watchers told %d times, p99", n, rounds), fmt.Sprintf("%.0f ms, %.2f × of a bare broadcaster's %.0f ms", median(ours), ratio, median(theirs)), "<= 1.3 ×, all told")
	verdict(t, memory <= 64<<10, "service: memory of a watcher", fmt.Sprintf("%.1f KB", float64(memory)/1024), "<= 64 KB")
	beside.kill()
	bare.kill()

	turn := func() float64 {
		var p99 []float64
		for range max(3, rounds/2) {
			p99 = append(p99, millis(c.told(through, n).at(0.99)))
		}
		return median(p99)
	}
	// Watchers that never read watch a second group. Its many large changes fill their buffers,
	// so that writes to them block during the measurement.
	noise := &changing{serving: c.serving, group: "noise", metadata: map[string]string{"x": strings.Repeat("x", 3900)}}
	var ratios, calm []float64
	for range 3 {
		base := turn()
		silent := task{Kind: sleepers, URL: c.URL + "/watch?group=watched&group=noise", N: idle}.start(t)
		for range 30 {
			noise.lead()
			noise.resign()
		}
		ratios, calm = append(ratios, turn()/base), append(calm, base)
		if len(ratios) == 3 {
			c.cutOff(n)
		}
		silent.kill()
	}
	verdict(t, median(ratios) <= 1.2, fmt.Sprintf("service: the same beside %d that never read, p99", idle), fmt.Sprintf("%.2f × of %.0f ms without them", median(ratios), median(calm)), "<= 1.2 ×, those cut off")
}

// The same, small enough to run with every change: all watchers get each change when it
// happens, and not only when their streams poll.
func TestWatchersAreTold(t *testing.T) {
	const n = 200
	c := &changing{serving: newServing(t, 1), group: "watched"}
	c.lead()
	w := task{Kind: watchers, URL: c.URL + "/groups/" + c.group + "/watch", N: n}.start(t)
	var last []float64
	for range 3 {
		last = append(last, c.told(w, n).at(1).Seconds())
	}
	if median(last) > 4 {
		t.Errorf("the last of %d watchers was told after %.1f seconds", n, last)
	}
}

// cutOff waits until the watchers that do not read have been disconnected, and no others.
func (c *changing) cutOff(n int) {
	c.t.Helper()
	var open float64
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		if open = metric(c.t, c.http, c.URL+"/metrics", "tenure_streams"); open == float64(n) {
			return
		}
	}
	c.t.Errorf("%.0f streams are open, want the %d that are read", open, n)
}
