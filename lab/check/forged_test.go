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
	"github.com/tenurehq/tenure/lab/facts"
	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/ledgerdb"
	"github.com/tenurehq/tenure/lab/verdict"
	"github.com/tenurehq/tenure/reference/api"
)

// recording is what a run leaves: a history with its manifest, the ledger's database, and what
// the code of the experiment requires.
type recording struct {
	files
	dir, db string
	want    history.Run
}

// record makes a good recording. As in the lab, the file "ledger" is read from the database.
func record(t *testing.T, seed uint64) *recording {
	t.Helper()
	h := good(seed)
	run := h["run"][0].(history.Run)
	run.Checks = Names()
	h["run"][0] = run
	r := &recording{files: h, db: filepath.Join(t.TempDir(), "ledger.db"), want: run}
	r.sql(t, `CREATE TABLE allocation (resource, name, n, first_seq, last_seq, token, at_ms)`,
		`CREATE TABLE tick (resource, n, token, tick_key, at_ms)`, `CREATE TABLE firing (resource, job, n, at_ms, token, fired_ms)`,
		`CREATE TABLE checkpoint (resource, name, version, token, updated_ms)`, `CREATE TABLE rejection (id, resource, token, holder, reason, current_token, applied, at_ms)`,
		`CREATE TABLE sequence (allocations)`, `CREATE TABLE fenced_resource (last_tick, firings)`, `CREATE TABLE ledger_counter (name, value)`)
	var rows []string
	n := map[string]int{}
	checkpoint := ""
	for i, e := range h["ledger"] {
		e := e.(history.Effect)
		switch {
		case e.Refused != "":
			n["refused"]++
			rows = append(rows, fmt.Sprintf("INSERT INTO rejection VALUES (%d, 'billing', %d, '%s', '%s', %d, 0, %d)", i, e.Token, e.Holder, e.Refused, e.Current, e.AtMS))
			continue
		case e.What == history.EffectSequence:
			rows = append(rows, fmt.Sprintf("INSERT INTO allocation VALUES ('billing', '%s', %d, %d, %d, %d, %d)", api.Sequence, e.N, e.First, e.Last, e.Token, e.AtMS))
		case e.What == history.EffectTick:
			rows = append(rows, fmt.Sprintf("INSERT INTO tick VALUES ('billing', %d, %d, 'tick-%d', %d)", e.N, e.Token, e.InstantMS, e.AtMS))
		case e.What == history.EffectFiring:
			rows = append(rows, fmt.Sprintf("INSERT INTO firing VALUES ('billing', '%s', %d, %d, %d, %d)", e.Name, e.N, e.InstantMS, e.Token, e.AtMS))
		case e.What == history.EffectCheckpoint: // only the last one is kept
			checkpoint = fmt.Sprintf("INSERT INTO checkpoint VALUES ('billing', '%s', %d, %d, %d)", e.Name, e.N, e.Token, e.AtMS)
		}
		n[e.What]++
	}
	r.sql(t, append(rows, checkpoint, fmt.Sprintf("INSERT INTO sequence VALUES (%d)", n[history.EffectSequence]),
		fmt.Sprintf("INSERT INTO fenced_resource VALUES (%d, %d)", n[history.EffectTick], n[history.EffectFiring]), fmt.Sprintf("INSERT INTO ledger_counter VALUES ('rejections', %d)", n["refused"]))...)
	db, err := ledgerdb.Open(r.db, false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	h["ledger"] = nil
	if err := ledgerdb.Effects(t.Context(), db, "billing", func(e history.Effect) error { h["ledger"] = append(h["ledger"], e); return nil }); err != nil {
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

func (r *recording) check(t *testing.T) verdict.Report {
	t.Helper()
	report, err := Dir(t.Context(), r.dir, Options{DB: r.db, Expect: func(run history.Run) (history.Run, error) {
		if run.Experiment != r.want.Experiment {
			return history.Run{}, errors.New("there is no such experiment")
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

// raw changes a file and nothing else. If change returns nil the file is removed.
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
func drop[E history.Event](h files, file string, such func(E) bool) {
	h[file] = slices.DeleteFunc(h[file], func(e history.Event) bool { x, ok := e.(E); return ok && such(x) })
}

// of reports whether an event is of a node.
func of(e history.Event, node string) bool {
	switch e := e.(type) {
	case history.Process:
		return e.Node == node
	case history.Belief:
		return e.Node == node
	case history.Attempt:
		return e.Node == node
	case history.Seal:
		return e.Node == node
	}
	return false
}

// middle picks one event that is neither the first nor the last.
func middle[E history.Event](h files, file string, such func(E) bool) int {
	all := find(h, file, such)
	return all[len(all)/2]
}

func split(data []byte) [][]byte {
	return bytes.SplitAfter(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))
}

// The named check refuses a forged recording. One kind of forgery edits bytes, another also
// corrects the last line of the file, and a third writes the whole history again with correct
// digests, but does not change the ledger's database and the code.
func TestForged(t *testing.T) {
	ok := func(a history.Attempt) bool { return a.Outcome == history.OutcomeOK && a.Token > 1 }
	allocated := func(e history.Effect) bool { return e.What == history.EffectSequence }
	only := func(what string) func(history.Attempt) bool { // attempts that ask for nothing else
		return func(a history.Attempt) bool { return ok(a) && len(a.Writes) == 1 && a.Writes[0].What == what }
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
			i := middle(r.files, "nodes", ok)
			r.insert("nodes", i, r.files["nodes"][i])
			r.write(t, "nodes")
		}},
		{"a failed call removed", "history", func(t *testing.T, r *recording) {
			drop(r.files, "calls", func(c history.Call) bool { return c.Error != "" })
			r.write(t, "calls")
		}},
		{"a keep-alive that did not fail", "history", func(t *testing.T, r *recording) {
			r.insert("nodes", 5, history.Belief{Node: "node-1", State: history.Missed, At: history.When(r.files["nodes"][5])})
			r.write(t, "nodes")
		}},
		{"a file added", "history", func(t *testing.T, r *recording) {
			if err := os.WriteFile(filepath.Join(r.dir, "more.ndjson"), []byte(`{"kind":"end","lines":0}`+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}},

		// The whole history, with correct digests.
		{"a node left out", "history: processes of 2", func(t *testing.T, r *recording) {
			r.files["nodes"] = slices.DeleteFunc(r.files["nodes"], func(e history.Event) bool { return of(e, "node-2") })
			r.again(t)
		}},
		{"no node at all", "history", func(t *testing.T, r *recording) {
			delete(r.files, "nodes")
			edit(r.files, "run", 0, func(run *history.Run) { run.Nodes = 0 })
			r.again(t)
		}},
		{"fewer checks", "history: Checks", func(t *testing.T, r *recording) {
			edit(r.files, "run", 0, func(run *history.Run) { run.Checks = []string{"history", "once"} })
			r.again(t)
		}},
		{"a longer TTL", "history", func(t *testing.T, r *recording) {
			edit(r.files, "run", 0, func(run *history.Run) { run.TTLMS *= 10 })
			r.again(t)
		}},
		{"a job left out", "history", func(t *testing.T, r *recording) {
			edit(r.files, "run", 0, func(run *history.Run) { run.Jobs = run.Jobs[:1] })
			r.again(t)
		}},
		{"another experiment", "history", func(t *testing.T, r *recording) {
			edit(r.files, "run", 0, func(run *history.Run) { run.Experiment = "mine" })
			r.again(t)
		}},
		{"an answered call removed", "sequence: calls are missing", func(t *testing.T, r *recording) {
			unknown := len(find(r.files, "calls", func(c history.Call) bool { return c.Unknown }))
			for range 3 * (unknown + 1) { // fewer could be calls of unknown outcome
				r.remove("calls", middle(r.files, "calls", isAnswered))
			}
			r.again(t)
		}},
		{"every call removed", "sequence", func(t *testing.T, r *recording) {
			r.files["calls"] = nil
			r.again(t)
		}},
		{"a call doubled", "sequence", func(t *testing.T, r *recording) {
			i := middle(r.files, "calls", isAnswered)
			r.insert("calls", i, r.files["calls"][i])
			r.again(t)
		}},
		{"the token of a call", "sequence: no effect in the history has that range", func(t *testing.T, r *recording) {
			edit(r.files, "calls", middle(r.files, "calls", isAnswered), func(c *history.Call) { c.Token++ })
			r.again(t)
		}},
		{"the numbers of a call", "ledger", func(t *testing.T, r *recording) {
			edit(r.files, "calls", middle(r.files, "calls", isAnswered), func(c *history.Call) { c.First += 1 << 30; c.Last += 1 << 30 })
			r.again(t)
		}},
		{"a call that ended before it began", "sequence", func(t *testing.T, r *recording) {
			edit(r.files, "calls", middle(r.files, "calls", isAnswered), func(c *history.Call) { c.Start, c.End = c.End, c.Start })
			r.again(t)
		}},
		{"an effect removed", "ledger", func(t *testing.T, r *recording) {
			r.remove("ledger", middle(r.files, "ledger", isEvery))
			r.again(t)
		}},
		{"the last range removed here and in the database", "fence: was acknowledged", func(t *testing.T, r *recording) {
			all := find(r.files, "ledger", allocated)
			i := all[len(all)-1]
			r.sql(t, fmt.Sprintf("DELETE FROM allocation WHERE n = %d", r.files["ledger"][i].(history.Effect).N), "UPDATE sequence SET allocations = allocations - 1")
			r.remove("ledger", i)
			r.again(t)
		}},
		{"an effect removed here and in the database", "fence: effects are missing", func(t *testing.T, r *recording) {
			i := middle(r.files, "ledger", allocated)
			r.sql(t, fmt.Sprintf("DELETE FROM allocation WHERE n = %d", r.files["ledger"][i].(history.Effect).N), "UPDATE sequence SET allocations = allocations - 1")
			r.remove("ledger", i)
			r.again(t)
		}},
		{"every effect removed", "fence", func(t *testing.T, r *recording) {
			r.files["ledger"] = nil
			r.again(t)
		}},
		{"the last effects removed", "ledger", func(t *testing.T, r *recording) {
			r.files["ledger"] = r.files["ledger"][:len(r.files["ledger"])-1]
			r.again(t)
		}},
		{"effects in another order", "ledger", func(t *testing.T, r *recording) {
			i := middle(r.files, "ledger", isEvery)
			l := r.files["ledger"]
			l[i], l[i+1] = l[i+1], l[i]
			r.again(t)
		}},
		{"the range of an effect", "ledger", func(t *testing.T, r *recording) {
			edit(r.files, "ledger", middle(r.files, "ledger", allocated), func(e *history.Effect) { e.Last += 100 })
			r.again(t)
		}},
		{"the range of an effect, here and in the database", "fence: has the range", func(t *testing.T, r *recording) {
			i := middle(r.files, "ledger", allocated)
			edit(r.files, "ledger", i, func(e *history.Effect) { e.Last += 100 })
			r.sql(t, fmt.Sprintf("UPDATE allocation SET last_seq = last_seq + 100 WHERE n = %d", r.files["ledger"][i].(history.Effect).N))
			r.again(t)
		}},
		{"the token of an effect", "ledger", func(t *testing.T, r *recording) {
			edit(r.files, "ledger", middle(r.files, "ledger", allocated), func(e *history.Effect) { e.Token++ })
			r.again(t)
		}},
		{"the time of an effect", "ledger", func(t *testing.T, r *recording) {
			edit(r.files, "ledger", middle(r.files, "ledger", allocated), func(e *history.Effect) { e.AtMS++ })
			r.again(t)
		}},
		{"a refusal removed", "ledger", func(t *testing.T, r *recording) {
			drop(r.files, "ledger", isRefused)
			r.again(t)
		}},
		{"a refusal removed here and in the database", "fence", func(t *testing.T, r *recording) {
			drop(r.files, "ledger", isRefused)
			r.sql(t, "DELETE FROM rejection", "UPDATE ledger_counter SET value = 0")
			r.again(t)
		}},
		{"a refused attempt removed", "fence", func(t *testing.T, r *recording) {
			drop(r.files, "nodes", func(a history.Attempt) bool { return a.Outcome == history.OutcomeRefused })
			r.again(t)
		}},
		{"an attempt removed", "fence: no attempt to write them", func(t *testing.T, r *recording) {
			r.remove("nodes", middle(r.files, "nodes", only(history.EffectSequence)))
			r.again(t)
		}},
		{"the attempt of a checkpoint removed", "fence: checkpoint handover took effect", func(t *testing.T, r *recording) {
			all := find(r.files, "nodes", only(history.EffectCheckpoint))
			r.remove("nodes", all[len(all)-1])
			r.again(t)
		}},
		{"the token of an attempt", "fence", func(t *testing.T, r *recording) {
			edit(r.files, "nodes", middle(r.files, "nodes", ok), func(a *history.Attempt) { a.Token-- })
			r.again(t)
		}},
		{"the range of an attempt", "fence", func(t *testing.T, r *recording) {
			edit(r.files, "nodes", middle(r.files, "nodes", only(history.EffectSequence)), func(a *history.Attempt) {
				a.Writes = []history.Write{{What: history.EffectSequence, Name: api.Sequence, First: a.Writes[0].First, Last: a.Writes[0].Last + 1}}
			})
			r.again(t)
		}},
		{"the time of an attempt", "no-zombie", func(t *testing.T, r *recording) {
			edit(r.files, "nodes", middle(r.files, "nodes", ok), func(a *history.Attempt) { a.At -= a.At / 2 })
			r.again(t)
		}},
		{"seals removed", "fence", func(t *testing.T, r *recording) {
			drop(r.files, "nodes", func(s history.Seal) bool { return s.Token == 3 })
			r.again(t)
		}},
		{"terms removed", "no-zombie", func(t *testing.T, r *recording) {
			drop(r.files, "nodes", func(b history.Belief) bool { return b.Token == 3 })
			r.again(t)
		}},
		{"evidence that is only words", "evidence", func(t *testing.T, r *recording) {
			for i := range r.files["faults"] {
				edit(r.files, "faults", i, func(f *history.Fault) { f.Proof, f.Evidence = history.Proof{}, "it surely bit" })
			}
			r.again(t)
		}},
		{"a pause that did not happen", "evidence", func(t *testing.T, r *recording) {
			a := r.files["nodes"][middle(r.files, "nodes", ok)].(history.Attempt)
			r.insert("faults", 0, history.Fault{Name: "gc-pause-leader", Class: history.ClassPause, Target: a.Node, Begun: a.At.Add(-time.Second), Healed: a.At.Add(time.Second), Evidence: "stood still", Proof: history.Proof{Kind: history.ProofStopped, PIDs: []int{1}}})
			r.again(t)
		}},
		{"a pause of a node that wrote", "evidence", func(t *testing.T, r *recording) {
			a := r.files["nodes"][middle(r.files, "nodes", ok)].(history.Attempt)
			pid := 0
			for _, i := range find(r.files, "nodes", func(p history.Process) bool { return p.Node == a.Node && p.At < a.At.Add(-time.Second) }) {
				pid = r.files["nodes"][i].(history.Process).PID
			}
			r.insert("faults", 0, history.Fault{Name: "gc-pause-leader", Class: history.ClassPause, Target: a.Node, Begun: a.At.Add(-time.Second), Set: a.At.Add(-time.Second), Held: a.At.Add(time.Second), Healed: a.At.Add(time.Second), Proof: history.Proof{Kind: history.ProofStopped, PIDs: []int{pid}}})
			r.again(t)
		}},
		{"a kill that did not happen", "evidence", func(t *testing.T, r *recording) {
			at := kZero.Add(100 * time.Millisecond)
			r.insert("faults", 0, history.Fault{Name: "kill-leader", Class: history.ClassKill, Target: "node-3", Begun: at, Healed: at, Evidence: "pid 9 is gone", Proof: history.Proof{Kind: history.ProofExited, PIDs: []int{9}}})
			r.again(t)
		}},
		{"a kill after which no process was started", "evidence", func(t *testing.T, r *recording) {
			drop(r.files, "nodes", func(p history.Process) bool { return p.PID%100 > 1 })
			r.again(t)
		}},
		{"a pause that is proved as another fault", "evidence: is of class pause", func(t *testing.T, r *recording) {
			for _, i := range find(r.files, "faults", fault(history.ClassPause)) {
				edit(r.files, "faults", i, func(f *history.Fault) { f.Proof.Kind = history.ProofFelt })
			}
			r.again(t)
		}},
		{"a kill of nobody", "evidence: names no process", func(t *testing.T, r *recording) {
			r.insert("faults", 0, history.Fault{Name: "kill", Target: "ledger", Begun: kZero, Healed: kZero, Evidence: "pid 9 is gone", Proof: history.Proof{Kind: history.ProofExited}})
			r.again(t)
		}},
		{"a cut that nobody felt", "evidence", func(t *testing.T, r *recording) {
			at := history.When(r.files["nodes"][len(r.files["nodes"])-1])
			r.insert("faults", 0, history.Fault{Name: "partition-leader", Target: "node-1", Begun: at.Add(time.Millisecond), Healed: at.Add(time.Second), Evidence: "keep-alives failed: 9", Proof: history.Proof{Kind: history.ProofFelt}})
			r.again(t)
		}},
		{"a resignation that did not happen", "evidence", func(t *testing.T, r *recording) {
			r.insert("faults", 0, history.Fault{Name: "resign-leader", Target: "node-1", Begun: kZero.Add(time.Millisecond), Healed: kZero.Add(2 * time.Millisecond), Proof: history.Proof{Kind: history.ProofEnded, Token: 1}})
			r.again(t)
		}},
		{"a wrong clock as an excuse", "evidence", func(t *testing.T, r *recording) {
			r.insert("faults", 0, history.Fault{Name: "skew-leader", Class: history.ClassClock, Target: "node-1", Begun: kZero.Add(time.Millisecond), Healed: kZero.Add(time.Second), Proof: history.Proof{Kind: history.ProofMeasured}})
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
					if v.Result != verdict.Pass {
						t.Errorf("not forged: %v", v)
					}
				}
				return
			}
			check, says, _ := strings.Cut(f.check, ": ")
			v, there := report.Verdict(check)
			if !there || v.Result == verdict.Pass || report.Passed() {
				t.Errorf("%v; passed: %v", v, report.Passed())
			}
			if !slices.ContainsFunc(v.Findings, func(f verdict.Finding) bool { return strings.Contains(f.String(), says) }) {
				t.Errorf("%q is not in %v", says, v.Findings)
			}
		})
	}
}

// A window that porcupine does not decide in time is split. If porcupine does not decide its
// parts either, the verdict is unknown and the run has not passed.
func TestPorcupineTimeout(t *testing.T) {
	for name, tt := range map[string]struct {
		decides int // calls that porcupine decides in time
		reused  bool
		want    verdict.Result
	}{
		"in time":            {2 * window, false, verdict.Pass},
		"after a split":      {window / 3, false, verdict.Pass},
		"never":              {0, false, verdict.Unknown},
		"bad after a split":  {window / 3, true, verdict.Fail},
		"bad, never decided": {0, true, verdict.Unknown},
	} {
		v := verdict.New("", "", "calls answered", "windows")
		w := inOneOrder(t.Context(), func(m porcupine.Model, ops []porcupine.Operation, d time.Duration) porcupine.CheckResult {
			if len(ops) > tt.decides {
				return porcupine.Unknown
			}
			return porcupine.CheckOperationsTimeout(m, ops, d)
		})(v, facts.New())
		var before facts.Peak
		for i := range uint64(window) {
			now := history.Call{Start: clock.Instant(10 * i), End: clock.Instant(10*i + 5), First: i + 1, Last: i + 1, Token: 1}
			now.Line = history.Place{File: "calls.ndjson", Line: int(i) + 1}
			if tt.reused && i == window-1 {
				now.First, now.Last = 7, 7
			}
			w.answer(now, before)
			before = facts.Peak{Call: now}
		}
		w.end()
		if v := v.Decide(); v.Result != tt.want {
			t.Errorf("%s: %v, want %s", name, v, tt.want)
		}
	}
}
