package plot

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func around(rng *rand.Rand, n int, from, to time.Duration) []time.Duration {
	all := make([]time.Duration, n)
	for i := range all {
		all[i] = from + time.Duration(rng.Float64()*rng.Float64()*float64(to-from))
	}
	return all
}

type figure interface{ Figure() (*Figure, error) }

// examples returns one of each figure, with plausible numbers.
func examples() map[string]figure {
	rng := rand.New(rand.NewPCG(1, 1))
	const s, ms = time.Second, time.Millisecond
	series := func(engine string, extra time.Duration, ttls ...time.Duration) FailoverSeries {
		out := FailoverSeries{Engine: engine}
		for _, t := range ttls {
			out.At = append(out.At, FailoverPoint{TTL: t, Bound: t + t/50 + extra, Samples: around(rng, 40, t*3/4, t+extra)})
		}
		return out
	}
	raft := FailoverSeries{Engine: "raft"}
	for _, t := range []time.Duration{1 * s, 3 * s} {
		raft.At = append(raft.At, FailoverPoint{TTL: t, Bound: t*2 + 300*ms, Samples: around(rng, 40, t, t*17/10)})
	}
	story := Timeline{
		Note: "experiment 4: leader paused between check and write, TTL 2 s, etcd, 5,000 calls/s, seed 7", Length: 12 * s,
		Believed: []Stretch{{"node-1", 41, 200 * ms, 6200 * ms}, {"node-2", 42, 4900 * ms, 9 * s}, {"node-3", 43, 9100 * ms, 12 * s}},
		Effect:   []Stretch{{"node-1", 41, 250 * ms, 2800 * ms}, {"node-2", 42, 4950 * ms, 9 * s}, {"node-3", 43, 9120 * ms, 12 * s}},
		Refused:  []Mark{{"node-1", 6190 * ms}},
		Faults:   []Shade{{"gc-pause-leader", 2800 * ms, 6150 * ms}, {"resign-leader", 9 * s, 9 * s}},
	}
	storm := Timeline{Note: "storm: 200 faults in 30 minutes, TTL 3 s, etcd, seed 11", Length: 1800 * s}
	for at, i := time.Duration(0), 0; at < 1790*s; i++ {
		node := []string{"node-1", "node-2", "node-3", "node-4", "node-5"}[rng.IntN(5)]
		end := at + time.Duration(3+rng.IntN(25))*s
		storm.Believed = append(storm.Believed, Stretch{node, uint64(i + 1), at, end})
		storm.Effect = append(storm.Effect, Stretch{node, uint64(i + 1), at + 50*ms, end})
		storm.Faults = append(storm.Faults, Shade{"kill", end - s, end})
		at = end + 3*s
	}
	return map[string]figure{
		"failover": Failovers{
			Note: "kill -9 of the leader under 5,000 calls/s, 40 rounds each, 2 cores, seed 1",
			Series: []FailoverSeries{
				series("etcd", 700*ms, 2*s, 3*s, 10*s, 30*s), raft,
			},
		},
		"knee": Knee{
			Note: "nobody crashed: every change of leader here was a mistake", Over: 10 * time.Minute,
			Series: []KneeSeries{
				{"CPU burner", []KneePoint{{2 * s, 9}, {3 * s, 2}, {10 * s, 0}, {30 * s, 0}}},
				{"garbage collection", []KneePoint{{2 * s, 3}, {3 * s, 0}, {10 * s, 0}, {30 * s, 0}}},
				{"engine starved by a neighbour", []KneePoint{{2 * s, 14}, {3 * s, 5}, {10 * s, 0}, {30 * s, 0}}},
			},
		},
		"timeline":       story,
		"timeline-storm": storm,
		"election": Elections{
			Note: "9 nodes on etcd, leader killed every 5 s for 10 minutes, TTL 2 s, seed 3", Bar: 500 * ms,
			Series: []Series{{"in line", around(rng, 120, 3*ms, 60*ms)}, {"all at once", around(rng, 120, 8*ms, 900*ms)}},
		},
		"gaps": Gaps{
			Note:   "100 rounds each, attempts to write on one clock, gap < 0 & overlap = \"both write\", TTL 3 s, seed 5",
			Series: []Series{{"resign, etcd", around(rng, 100, 4*ms, 40*ms)}, {"transfer, etcd", around(rng, 100, 3*ms, 22*ms)}, {"transfer, raft", around(rng, 100, 2*ms, 15*ms)}},
		},
	}
}

// Every figure can be drawn, is the same each time, and is valid SVG and PNG of a README's
// size. With TENURE_PLOTS the figures are written to that folder.
func TestFigures(t *testing.T) {
	for name, e := range examples() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var svgs, pngs [2][]byte
			for i := range 2 {
				f, err := e.Figure()
				if err != nil {
					t.Fatal(err)
				}
				if svgs[i], err = f.SVG(); err != nil {
					t.Fatal(err)
				}
				if i > 0 && name != "gaps" {
					pngs[i] = pngs[0] // drawn by the same code, and slow
				} else if pngs[i], err = f.PNG(); err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Equal(svgs[0], svgs[1]) || !bytes.Equal(pngs[0], pngs[1]) {
				t.Error("the same input gave other bytes")
			}
			for d := xml.NewDecoder(bytes.NewReader(svgs[0])); ; {
				if _, err := d.Token(); errors.Is(err, io.EOF) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
			if !bytes.Contains(svgs[0], []byte("sans-serif")) {
				t.Error("the SVG names no font that everybody has")
			}
			img, err := png.DecodeConfig(bytes.NewReader(pngs[0]))
			if err != nil || img.Width != 990 || img.Height < 300 || img.Height > 900 {
				t.Errorf("%d × %d, %v", img.Width, img.Height, err)
			}
			if len(svgs[0]) > 400<<10 || len(pngs[0]) > 400<<10 {
				t.Errorf("%d bytes of SVG, %d of PNG: too large for a README", len(svgs[0]), len(pngs[0]))
			}
			if dir := os.Getenv("TENURE_PLOTS"); dir != "" {
				f, _ := e.Figure()
				if err := f.Save(dir, name); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A title states what the numbers show, good or bad.
func TestTitles(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	for want, e := range map[string]figure{
		"within the promised bound: 2 of 2 times":  Failovers{Series: []FailoverSeries{{"etcd", []FailoverPoint{{3 * s, 4 * s, []time.Duration{s, 2 * s}}}}}},
		"1 of 2 failovers took longer":             Failovers{Series: []FailoverSeries{{"etcd", []FailoverPoint{{3 * s, 4 * s, []time.Duration{s, 5 * s}}}}}},
		"From a TTL of 3 s on":                     Knee{Over: s, Series: []KneeSeries{{"cpu", []KneePoint{{2 * s, 1}, {3 * s, 0}}}}},
		"a longer one is needed":                   Knee{Over: s, Series: []KneeSeries{{"cpu", []KneePoint{{2 * s, 0}, {3 * s, 1}}}}},
		"at any TTL from 2 s up":                   Knee{Over: s, Series: []KneeSeries{{"cpu", []KneePoint{{2 * s, 0}, {3 * s, 0}}}}},
		"at most one leader took effect":           Timeline{Length: s, Believed: []Stretch{{"a", 1, 0, ms}, {"b", 2, ms, s}}, Effect: []Stretch{{"a", 1, 0, ms}, {"b", 2, ms, s}}},
		"Two nodes believed that they lead (once)": Timeline{Length: s, Believed: []Stretch{{"a", 1, 0, 2 * ms}, {"b", 2, ms, s}}},
		"With the fence off: two leaders took":     Timeline{Length: s, Unfenced: true, Effect: []Stretch{{"a", 1, 0, 2 * ms}, {"b", 2, ms, s}}},
		"Two leaders took effect at once":          Timeline{Length: s, Effect: []Stretch{{"a", 1, 0, 2 * ms}, {"b", 2, ms, s}}},
		"took effect, over 3 terms":                Timeline{Length: s, Show: 2 * ms, Effect: []Stretch{{"a", 1, 0, ms}, {"b", 2, ms, 3 * ms}, {"a", 3, 4 * ms, s}}},
		"1 late write refused":                     Timeline{Length: s, Effect: []Stretch{{"a", 1, 0, ms}}, Refused: []Mark{{"a", ms}}},
		"within the bar of 500 ms":                 Elections{Bar: 500 * ms, Series: []Series{{"x", []time.Duration{ms, 2 * ms}}}},
		"MISSING the bar":                          Elections{Bar: 500 * ms, Series: []Series{{"x", []time.Duration{ms, s}}}},
		"1 of 2 handovers":                         Gaps{Series: []Series{{"x", []time.Duration{-ms, ms}}}},
		"2 of 2 handovers":                         Gaps{Series: []Series{{"x", []time.Duration{0, ms}}}},
	} {
		f, err := e.Figure()
		if err != nil {
			t.Errorf("%s: %v", want, err)
			continue
		}
		if !strings.Contains(f.Title(), want) {
			t.Errorf("%q does not say %q", f.Title(), want)
		}
		if _, err := f.SVG(); err != nil {
			t.Error(err)
		}
	}
}

// Without measurements there is an error instead of an empty figure.
func TestNothing(t *testing.T) {
	for _, e := range []figure{
		Failovers{}, Failovers{Series: []FailoverSeries{{Engine: "etcd", At: []FailoverPoint{{TTL: 1}}}}}, Knee{}, Timeline{Length: 1}, Elections{},
		Elections{Series: []Series{{Name: "x"}}}, Gaps{}, Gaps{Series: []Series{{Name: "x"}}},
	} {
		if _, err := e.Figure(); !errors.Is(err, ErrNothing) {
			t.Errorf("%+v: %v", e, err)
		}
	}
}

// Save writes both files, or returns an error.
func TestSave(t *testing.T) {
	f, err := examples()["gaps"].Figure()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := f.Save(dir, "gaps"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gaps.svg", "gaps.png"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	if err := f.Save(filepath.Join(dir, "missing"), "gaps"); err == nil {
		t.Error("saved into a directory that does not exist")
	}
}
