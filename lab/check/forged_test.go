package check

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/reference/api"
)

// recording is a run as the lab leaves it: a history with its manifest, the ledger's
// database, and what the code of the experiment requires.
type recording struct {
	history
	dir, db string
	want    Run
}

// record makes a good recording. The file "ledger" of its history is read from the
// database, as the lab does it.
func record(t *testing.T, seed uint64) *recording {
	t.Helper()
	h := good(seed)
	run := h["run"][0].(Run)
	run.Checks = Names()
	h["run"][0] = run
	r := &recording{history: h, db: filepath.Join(t.TempDir(), "ledger.db"), want: run}
	r.sql(t, `CREATE TABLE allocation (resource, name, n, first_seq, last_seq, token, at_ms)`,
		`CREATE TABLE tick (resource, n, token, tick_key, at_ms)`, `CREATE TABLE firing (resource, job, n, at_ms, token, fired_ms)`,
		`CREATE TABLE checkpoint (resource, name, version, token, updated_ms)`, `CREATE TABLE rejection (id, resource, token, holder, reason, current_token, applied, at_ms)`,
		`CREATE TABLE sequence (allocations)`, `CREATE TABLE fenced_resource (last_tick, firings)`, `CREATE TABLE ledger_counter (name, value)`)
	var rows []string
	n := map[string]int{}
	checkpoint := ""
	for i, e := range h["ledger"] {
		e := e.(Effect)
		switch {
		case e.Refused != "":
			n["refused"]++
			rows = append(rows, fmt.Sprintf("INSERT INTO rejection VALUES (%d, 'billing', %d, '%s', '%s', %d, 0, %d)", i, e.Token, e.Holder, e.Refused, e.Current, e.AtMS))
			continue
		case e.What == EffectSequence:
			rows = append(rows, fmt.Sprintf("INSERT INTO allocation VALUES ('billing', '%s', %d, %d, %d, %d, %d)", api.Sequence, e.N, e.First, e.Last, e.Token, e.AtMS))
		case e.What == EffectTick:
			rows = append(rows, fmt.Sprintf("INSERT INTO tick VALUES ('billing', %d, %d, 'tick-%d', %d)", e.N, e.Token, e.InstantMS, e.AtMS))
		case e.What == EffectFiring:
			rows = append(rows, fmt.Sprintf("INSERT INTO firing VALUES ('billing', '%s', %d, %d, %d, %d)", e.Name, e.N, e.InstantMS, e.Token, e.AtMS))
		case e.What == EffectCheckpoint: // the last one stays
			checkpoint = fmt.Sprintf("INSERT INTO checkpoint VALUES ('billing', '%s', %d, %d, %d)", e.Name, e.N, e.Token, e.AtMS)
		}
		n[e.What]++
	}
	r.sql(t, append(rows, checkpoint, fmt.Sprintf("INSERT INTO sequence VALUES (%d)", n[EffectSequence]),
		fmt.Sprintf("INSERT INTO fenced_resource VALUES (%d, %d)", n[EffectTick], n[EffectFiring]), fmt.Sprintf("INSERT INTO ledger_counter VALUES ('rejections', %d)", n["refused"]))...)
	db, err := OpenLedger(r.db, false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	h["ledger"] = nil
	if err := Effects(t.Context(), db, "billing", func(e Effect) error { h["ledger"] = append(h["ledger"], e); return nil }); err != nil {
		t.Fatal(err)
	}
	r.dir = h.save(t)
	return r
}

// sql changes the ledger's database.
func (r *recording) sql(t *testing.T, statements ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", r.db)
	if err != nil {
		t.Fatal(err)
	}
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range statements {
		if _, err := tx.ExecContext(t.Context(), s); err != nil {
			t.Fatal(s, err)
		}
	}
	if err := errors.Join(tx.Commit(), db.Close()); err != nil {
		t.Fatal(err)
	}
}

func (r *recording) check(t *testing.T) Report {
	t.Helper()
	report, err := Dir(t.Context(), r.dir, Options{DB: r.db, Expect: func(run Run) (Run, error) {
		if run.Experiment != r.want.Experiment {
			return Run{}, errors.New("there is no such experiment")
		}
		return r.want, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// again writes the whole history with new digests.
func (r *recording) again(t *testing.T) { r.dir = r.save(t) }

// write writes one file with a new last line and leaves the manifest as it is.
func (r *recording) write(t *testing.T, name string) {
	r.raw(t, name+extension, func([]byte) []byte {
		data, err := os.ReadFile(filepath.Join(r.save(t), name+extension))
		if err != nil {
			t.Fatal(err)
		}
		return data
	})
}

// raw changes a file and nothing else. No content: the file is removed.
func (r *recording) raw(t *testing.T, file string, change func([]byte) []byte) {
	t.Helper()
	path := filepath.Join(r.dir, file)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if data = change(data); data == nil {
		err = os.Remove(path)
	} else {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// drop removes all such events of a file.
func drop[E Event](h history, file string, such func(E) bool) {
	h[file] = slices.DeleteFunc(h[file], func(e Event) bool { x, ok := e.(E); return ok && such(x) })
}

// of is whether an event is of a node.
func of(e Event, node string) bool {
	switch e := e.(type) {
	case Process:
		return e.Node == node
	case Belief:
		return e.Node == node
	case Attempt:
		return e.Node == node
	case Seal:
		return e.Node == node
	}
	return false
}

// middle picks one event that is neither the first nor the last.
func middle[E Event](h history, file string, such func(E) bool) int {
	all := find(h, file, such)
	return all[len(all)/2]
}

func split(data []byte) [][]byte {
	return bytes.SplitAfter(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
}

// A forged recording is refused, by the check that is named. Three kinds of forger: one
// edits bytes, one also corrects the last line of the file, and one writes the whole
// history again with correct digests, but leaves the ledger's database and the code.
func TestForged(t *testing.T) {
	ok := func(a Attempt) bool { return a.Outcome == OutcomeOK && a.Token > 1 }
	allocated := func(e Effect) bool { return e.What == EffectSequence }
	only := func(what string) func(Attempt) bool { // attempts that ask for nothing else
		return func(a Attempt) bool { return ok(a) && len(a.Writes) == 1 && a.Writes[0].What == what }
	}
	forgeries := []struct {
		name string
		// check is the name of the check and, after a colon, what it must say.
		check string
		forge func(*testing.T, *recording)
	}{
		{"nothing", "", func(*testing.T, *recording) {}},
		{"the same written again", "", func(t *testing.T, r *recording) { r.again(t) }},

		// Bytes.
		{"a file removed", "history", func(t *testing.T, r *recording) { r.raw(t, "nodes.ndjson", func([]byte) []byte { return nil }) }},
		{"the faults removed", "history: faults.ndjson", func(t *testing.T, r *recording) { r.raw(t, "faults.ndjson", func([]byte) []byte { return nil }) }},
		{"the manifest removed", "history: recorded before the stricter checks", func(t *testing.T, r *recording) { r.raw(t, manifestFile, func([]byte) []byte { return nil }) }},
		{"the manifest emptied", "history", func(t *testing.T, r *recording) { r.raw(t, manifestFile, func([]byte) []byte { return []byte("{}") }) }},
		{"a file cut off", "history", func(t *testing.T, r *recording) {
			r.raw(t, "calls.ndjson", func(b []byte) []byte { return bytes.Join(split(b)[:20], nil) })
		}},
		{"a file cut off, with a last line that counts", "history", func(t *testing.T, r *recording) {
			r.raw(t, "calls.ndjson", func(b []byte) []byte {
				return append(bytes.Join(split(b)[:20], nil), `{"kind":"end","lines":20}`+"\n"...)
			})
		}},
		{"two lines swapped", "history", func(t *testing.T, r *recording) {
			r.raw(t, "nodes.ndjson", func(b []byte) []byte {
				l := split(b)
				l[10], l[11] = l[11], l[10]
				return append(bytes.Join(l, nil), '\n')
			})
		}},
		{"a file of another run", "history", func(t *testing.T, r *recording) {
			r.raw(t, "calls.ndjson", func([]byte) []byte {
				data, err := os.ReadFile(filepath.Join(good(77).save(t), "calls.ndjson"))
				if err != nil {
					t.Fatal(err)
				}
				return data
			})
		}},

		// One file with a correct last line.
		{"a line doubled", "history", func(t *testing.T, r *recording) {
			i := middle(r.history, "nodes", ok)
			r.insert("nodes", i, r.history["nodes"][i])
			r.write(t, "nodes")
		}},
		{"a failed call removed", "history", func(t *testing.T, r *recording) {
			drop(r.history, "calls", func(c Call) bool { return c.Error != "" })
			r.write(t, "calls")
		}},
		{"a keep-alive that did not fail", "history", func(t *testing.T, r *recording) {
			r.insert("nodes", 5, Belief{Node: "node-1", State: Missed, At: r.history["nodes"][5].when()})
			r.write(t, "nodes")
		}},
		{"a file added", "history", func(t *testing.T, r *recording) {
			if err := os.WriteFile(filepath.Join(r.dir, "more.ndjson"), []byte(`{"kind":"end","lines":0}`+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}},

		// The whole history, with correct digests.
		{"a node left out", "history: processes of 2", func(t *testing.T, r *recording) {
			r.history["nodes"] = slices.DeleteFunc(r.history["nodes"], func(e Event) bool { return of(e, "node-2") })
			r.again(t)
		}},
		{"no node at all", "history", func(t *testing.T, r *recording) {
			delete(r.history, "nodes")
			edit(r.history, "run", 0, func(run *Run) { run.Nodes = 0 })
			r.again(t)
		}},
		{"fewer checks", "history: Checks", func(t *testing.T, r *recording) {
			edit(r.history, "run", 0, func(run *Run) { run.Checks = []string{"history", "once"} })
			r.again(t)
		}},
		{"a longer TTL", "history", func(t *testing.T, r *recording) {
			edit(r.history, "run", 0, func(run *Run) { run.TTLMS *= 10 })
			r.again(t)
		}},
		{"a job left out", "history", func(t *testing.T, r *recording) {
			edit(r.history, "run", 0, func(run *Run) { run.Jobs = run.Jobs[:1] })
			r.again(t)
		}},
		{"another experiment", "history", func(t *testing.T, r *recording) {
			edit(r.history, "run", 0, func(run *Run) { run.Experiment = "mine" })
			r.again(t)
		}},
		{"an answered call removed", "sequence: calls are missing", func(t *testing.T, r *recording) {
			unknown := len(find(r.history, "calls", func(c Call) bool { return c.Unknown }))
			for range 3 * (unknown + 1) { // as many as can be of unknown outcome do not show
				r.remove("calls", middle(r.history, "calls", isAnswered))
			}
			r.again(t)
		}},
		{"every call removed", "sequence", func(t *testing.T, r *recording) {
			r.history["calls"] = nil
			r.again(t)
		}},
		{"a call doubled", "sequence", func(t *testing.T, r *recording) {
			i := middle(r.history, "calls", isAnswered)
			r.insert("calls", i, r.history["calls"][i])
			r.again(t)
		}},
		{"the token of a call", "sequence: no effect in the history has that range", func(t *testing.T, r *recording) {
			edit(r.history, "calls", middle(r.history, "calls", isAnswered), func(c *Call) { c.Token++ })
			r.again(t)
		}},
		{"the numbers of a call", "ledger", func(t *testing.T, r *recording) {
			edit(r.history, "calls", middle(r.history, "calls", isAnswered), func(c *Call) { c.First += 1 << 30; c.Last += 1 << 30 })
			r.again(t)
		}},
		{"a call that ended before it began", "sequence", func(t *testing.T, r *recording) {
			edit(r.history, "calls", middle(r.history, "calls", isAnswered), func(c *Call) { c.Start, c.End = c.End, c.Start })
			r.again(t)
		}},
		{"an effect removed", "ledger", func(t *testing.T, r *recording) {
			r.remove("ledger", middle(r.history, "ledger", isEvery))
			r.again(t)
		}},
		{"the last range removed here and in the database", "fence: was acknowledged", func(t *testing.T, r *recording) {
			all := find(r.history, "ledger", allocated)
			i := all[len(all)-1]
			r.sql(t, fmt.Sprintf("DELETE FROM allocation WHERE n = %d", r.history["ledger"][i].(Effect).N), "UPDATE sequence SET allocations = allocations - 1")
			r.remove("ledger", i)
			r.again(t)
		}},
		{"an effect removed here and in the database", "fence: effects are missing", func(t *testing.T, r *recording) {
			i := middle(r.history, "ledger", allocated)
			r.sql(t, fmt.Sprintf("DELETE FROM allocation WHERE n = %d", r.history["ledger"][i].(Effect).N), "UPDATE sequence SET allocations = allocations - 1")
			r.remove("ledger", i)
			r.again(t)
		}},
		{"every effect removed", "fence", func(t *testing.T, r *recording) {
			r.history["ledger"] = nil
			r.again(t)
		}},
		{"the last effects removed", "ledger", func(t *testing.T, r *recording) {
			r.history["ledger"] = r.history["ledger"][:len(r.history["ledger"])-1]
			r.again(t)
		}},
		{"effects in another order", "ledger", func(t *testing.T, r *recording) {
			i := middle(r.history, "ledger", isEvery)
			l := r.history["ledger"]
			l[i], l[i+1] = l[i+1], l[i]
			r.again(t)
		}},
		{"the range of an effect", "ledger", func(t *testing.T, r *recording) {
			edit(r.history, "ledger", middle(r.history, "ledger", allocated), func(e *Effect) { e.Last += 100 })
			r.again(t)
		}},
		{"the range of an effect, here and in the database", "fence: has the range", func(t *testing.T, r *recording) {
			i := middle(r.history, "ledger", allocated)
			edit(r.history, "ledger", i, func(e *Effect) { e.Last += 100 })
			r.sql(t, fmt.Sprintf("UPDATE allocation SET last_seq = last_seq + 100 WHERE n = %d", r.history["ledger"][i].(Effect).N))
			r.again(t)
		}},
		{"the token of an effect", "ledger", func(t *testing.T, r *recording) {
			edit(r.history, "ledger", middle(r.history, "ledger", allocated), func(e *Effect) { e.Token++ })
			r.again(t)
		}},
		{"the time of an effect", "ledger", func(t *testing.T, r *recording) {
			edit(r.history, "ledger", middle(r.history, "ledger", allocated), func(e *Effect) { e.AtMS++ })
			r.again(t)
		}},
		{"a refusal removed", "ledger", func(t *testing.T, r *recording) {
			drop(r.history, "ledger", isRefused)
			r.again(t)
		}},
		{"a refusal removed here and in the database", "fence", func(t *testing.T, r *recording) {
			drop(r.history, "ledger", isRefused)
			r.sql(t, "DELETE FROM rejection", "UPDATE ledger_counter SET value = 0")
			r.again(t)
		}},
		{"a refused attempt removed", "fence", func(t *testing.T, r *recording) {
			drop(r.history, "nodes", func(a Attempt) bool { return a.Outcome == OutcomeRefused })
			r.again(t)
		}},
		{"an attempt removed", "fence: no attempt to write them", func(t *testing.T, r *recording) {
			r.remove("nodes", middle(r.history, "nodes", only(EffectSequence)))
			r.again(t)
		}},
		{"the attempt of a checkpoint removed", "fence: checkpoint handover took effect", func(t *testing.T, r *recording) {
			all := find(r.history, "nodes", only(EffectCheckpoint))
			r.remove("nodes", all[len(all)-1])
			r.again(t)
		}},
		{"the token of an attempt", "fence", func(t *testing.T, r *recording) {
			edit(r.history, "nodes", middle(r.history, "nodes", ok), func(a *Attempt) { a.Token-- })
			r.again(t)
		}},
		{"the range of an attempt", "fence", func(t *testing.T, r *recording) {
			edit(r.history, "nodes", middle(r.history, "nodes", only(EffectSequence)), func(a *Attempt) {
				a.Writes = []Write{{EffectSequence, api.Sequence, a.Writes[0].First, a.Writes[0].Last + 1, 0}}
			})
			r.again(t)
		}},
		{"the time of an attempt", "no-zombie", func(t *testing.T, r *recording) {
			edit(r.history, "nodes", middle(r.history, "nodes", ok), func(a *Attempt) { a.At -= a.At / 2 })
			r.again(t)
		}},
		{"seals removed", "fence", func(t *testing.T, r *recording) {
			drop(r.history, "nodes", func(s Seal) bool { return s.Token == 3 })
			r.again(t)
		}},
		{"terms removed", "no-zombie", func(t *testing.T, r *recording) {
			drop(r.history, "nodes", func(b Belief) bool { return b.Token == 3 })
			r.again(t)
		}},
		{"evidence that is only words", "evidence", func(t *testing.T, r *recording) {
			for i := range r.history["faults"] {
				edit(r.history, "faults", i, func(f *Fault) { f.Proof, f.Evidence = Proof{}, "it surely bit" })
			}
			r.again(t)
		}},
		{"a pause that did not happen", "evidence", func(t *testing.T, r *recording) {
			a := r.history["nodes"][middle(r.history, "nodes", ok)].(Attempt)
			r.insert("faults", 0, Fault{Name: "gc-pause-leader", Class: ClassPause, Target: a.Node, Begun: a.At.Add(-time.Second), Healed: a.At.Add(time.Second), Evidence: "stood still", Proof: Proof{Kind: ProofStopped, PIDs: []int{1}}})
			r.again(t)
		}},
		{"a pause of a node that wrote", "evidence", func(t *testing.T, r *recording) {
			a := r.history["nodes"][middle(r.history, "nodes", ok)].(Attempt)
			pid := 0
			for _, i := range find(r.history, "nodes", func(p Process) bool { return p.Node == a.Node && p.At < a.At.Add(-time.Second) }) {
				pid = r.history["nodes"][i].(Process).PID
			}
			r.insert("faults", 0, Fault{Name: "gc-pause-leader", Class: ClassPause, Target: a.Node, Begun: a.At.Add(-time.Second), Set: a.At.Add(-time.Second), Held: a.At.Add(time.Second), Healed: a.At.Add(time.Second), Proof: Proof{Kind: ProofStopped, PIDs: []int{pid}}})
			r.again(t)
		}},
		{"a kill that did not happen", "evidence", func(t *testing.T, r *recording) {
			at := kZero.Add(100 * time.Millisecond)
			r.insert("faults", 0, Fault{Name: "kill-leader", Class: ClassKill, Target: "node-3", Begun: at, Healed: at, Evidence: "pid 9 is gone", Proof: Proof{Kind: ProofExited, PIDs: []int{9}}})
			r.again(t)
		}},
		{"a kill after which no process was started", "evidence", func(t *testing.T, r *recording) {
			drop(r.history, "nodes", func(p Process) bool { return p.PID%100 > 1 })
			r.again(t)
		}},
		{"a pause that is proved as another fault", "evidence: is of class pause", func(t *testing.T, r *recording) {
			for _, i := range find(r.history, "faults", fault(ClassPause)) {
				edit(r.history, "faults", i, func(f *Fault) { f.Proof.Kind = ProofFelt })
			}
			r.again(t)
		}},
		{"a kill of nobody", "evidence: names no process", func(t *testing.T, r *recording) {
			r.insert("faults", 0, Fault{Name: "kill", Target: "ledger", Begun: kZero, Healed: kZero, Evidence: "pid 9 is gone", Proof: Proof{Kind: ProofExited}})
			r.again(t)
		}},
		{"a cut that nobody felt", "evidence", func(t *testing.T, r *recording) {
			at := r.history["nodes"][len(r.history["nodes"])-1].when()
			r.insert("faults", 0, Fault{Name: "partition-leader", Target: "node-1", Begun: at.Add(time.Millisecond), Healed: at.Add(time.Second), Evidence: "keep-alives failed: 9", Proof: Proof{Kind: ProofFelt}})
			r.again(t)
		}},
		{"a resignation that did not happen", "evidence", func(t *testing.T, r *recording) {
			r.insert("faults", 0, Fault{Name: "resign-leader", Target: "node-1", Begun: kZero.Add(time.Millisecond), Healed: kZero.Add(2 * time.Millisecond), Proof: Proof{Kind: ProofEnded, Token: 1}})
			r.again(t)
		}},
		{"a wrong clock as an excuse", "evidence", func(t *testing.T, r *recording) {
			r.insert("faults", 0, Fault{Name: "skew-leader", Class: ClassClock, Target: "node-1", Begun: kZero.Add(time.Millisecond), Healed: kZero.Add(time.Second), Proof: Proof{Kind: ProofMeasured}})
			r.again(t)
		}},

		// The database.
		{"no database", "ledger", func(_ *testing.T, r *recording) { r.db += ".gone" }},
		{"the database of another run", "ledger", func(t *testing.T, r *recording) { r.db = record(t, 78).db }},
		{"a row removed from the database", "ledger", func(t *testing.T, r *recording) { r.sql(t, "DELETE FROM firing WHERE n = 3") }},
		{"a row added to the database", "ledger", func(t *testing.T, r *recording) {
			r.sql(t, "INSERT INTO rejection VALUES (99999, 'billing', 1, 'node-1', 'stale', 2, 0, 1)", "UPDATE ledger_counter SET value = value + 1")
		}},
	}
	for _, f := range forgeries {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			r := record(t, 7)
			f.forge(t, r)
			report := r.check(t)
			if f.check == "" {
				for _, v := range report.Verdicts {
					if v.Result != Pass {
						t.Errorf("not forged: %v", v)
					}
				}
				return
			}
			check, says, _ := strings.Cut(f.check, ": ")
			v, there := report.Verdict(check)
			if !there || v.Result == Pass || report.Passed() {
				t.Errorf("%v; passed: %v", v, report.Passed())
			}
			if !slices.ContainsFunc(v.Findings, func(f Finding) bool { return strings.Contains(f.String(), says) }) {
				t.Errorf("%q is not in %v", says, v.Findings)
			}
		})
	}
}

// A window that porcupine does not decide in time is split and decided. If that does not
// help, the verdict is unknown and the run has not passed.
func TestPorcupineTimeout(t *testing.T) {
	for name, tt := range map[string]struct {
		decides int // calls that porcupine decides in time
		reused  bool
		want    Result
	}{
		"in time":            {2 * window, false, Pass},
		"after a split":      {window / 3, false, Pass},
		"never":              {0, false, Unknown},
		"bad after a split":  {window / 3, true, Fail},
		"bad, never decided": {0, true, Unknown},
	} {
		c := newLinear()
		c.check = func(m porcupine.Model, ops []porcupine.Operation, d time.Duration) porcupine.CheckResult {
			if len(ops) > tt.decides {
				return porcupine.Unknown
			}
			return porcupine.CheckOperationsTimeout(m, ops, d)
		}
		var before callAt
		for i := range uint64(window) {
			now := callAt{start: clock.Instant(10 * i), end: clock.Instant(10*i + 5), first: i + 1, last: i + 1, token: 1, at: Place{"calls.ndjson", int(i) + 1}}
			if tt.reused && i == window-1 {
				now.first, now.last = 7, 7
			}
			c.call(t.Context(), now, before)
			before = now
		}
		if v := c.verdict(t.Context()); v.Result != tt.want {
			t.Errorf("%s: %v, want %s", name, v, tt.want)
		}
	}
}
