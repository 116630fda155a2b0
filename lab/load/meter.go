package load

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies are kept in microseconds, from one to ten minutes, to three digits.
const (
	shortest = 1
	longest  = int64(10 * time.Minute / time.Microsecond)
	digits   = 3
)

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(shortest, longest, digits) }

// meter counts the results of calls. It has shards, so that connections do not wait for each
// other.
type meter struct {
	shards [8]shard

	unknown    atomic.Int64 // calls whose outcome is unknown
	gaveUp     atomic.Int64 // calls that found no leader in time
	refused    atomic.Int64 // calls that were refused
	again      atomic.Int64 // tries that were repeated
	late       atomic.Int64 // calls that were sent more than 1 ms late
	disordered atomic.Int64 // answers whose number or token did not rise on their connection
	dials      atomic.Int64
	token      atomic.Uint64

	mu    sync.Mutex // below
	total *hdrhistogram.Histogram
	ids   int64
	first string // the first problem, for people
}

type shard struct {
	mu  sync.Mutex
	h   *hdrhistogram.Histogram
	ids int64
	_   [40]byte // a cache line each
}

func newMeter() *meter {
	m := &meter{total: newHistogram()}
	for i := range m.shards {
		m.shards[i].h = newHistogram()
	}
	return m
}

func (m *meter) answered(worker int, took time.Duration, ids uint64) {
	s := &m.shards[worker%len(m.shards)]
	us := min(max(int64(took/time.Microsecond), shortest), longest)
	s.mu.Lock()
	_ = s.h.RecordValue(us) // in range
	s.ids += int64(ids)
	s.mu.Unlock()
}

func (m *meter) noted(what string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.first == "" {
		m.first = what
	}
}

// collect adds what was counted since the last time to the total and returns it.
func (m *meter) collect() (part *hdrhistogram.Histogram, ids int64) {
	part = newHistogram()
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		part.Merge(s.h)
		s.h.Reset()
		ids += s.ids
		s.ids = 0
		s.mu.Unlock()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.total.Merge(part)
	m.ids += ids
	return part, ids
}

// Progress describes the last second of a run.
type Progress struct {
	At      time.Duration
	Calls   float64 // answered per second
	IDs     float64
	P50     time.Duration
	P99     time.Duration
	Unknown int64 // since the start, like Errors
	Errors  int64
	Leader  string
	Token   uint64
}

func (p Progress) String() string {
	leader := "no leader"
	if p.Leader != "" {
		leader = fmt.Sprintf("%s token %d", p.Leader, p.Token)
	}
	return fmt.Sprintf("%5.0fs %9.0f calls/s %10.0f ids/s  p50 %9s  p99 %9s  unknown %d  errors %d  %s",
		p.At.Seconds(), p.Calls, p.IDs, short(p.P50), short(p.P99), p.Unknown, p.Errors, leader)
}

func short(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d >= 10*time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(time.Microsecond).String()
}

func quantile(h *hdrhistogram.Histogram, q float64) time.Duration {
	return time.Duration(h.ValueAtQuantile(q)) * time.Microsecond
}
