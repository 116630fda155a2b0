package labnode

import (
	"bufio"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"testing"

	"github.com/tenurehq/tenure/lab/history"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/node"
)

// A trace has every line at once, without being closed, as after a kill. The next process
// appends to the same file. Without a folder nothing is written.
func TestTrace(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "traces")
	first, err := openTrace(dir, "node-1", slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer first.close()
	first.event(node.Event{Kind: api.TraceAttempt, At: 20, Token: 3, Writes: []ledgerapi.Write{
		{Sequence: &ledgerapi.SequenceWrite{Name: "next", First: 5, Last: 9}}, {Tick: &ledgerapi.TickWrite{Key: "tick-1000"}},
		{Fire: &ledgerapi.FireWrite{Job: "a", AtMS: 7}}, {Fire: &ledgerapi.FireWrite{Job: "b", AtMS: 7, Skip: true}}, {Checkpoint: &ledgerapi.CheckpointWrite{Name: "c"}},
	}})
	second, err := openTrace(dir, "node-1", slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	defer second.close()
	second.event(node.Event{Kind: api.TraceDone, At: 30, End: 35, Token: 4, What: "unknown"})

	f, err := os.Open(filepath.Join(dir, "node-1.trace"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var got []labapi.TraceLine
	for in := bufio.NewScanner(f); in.Scan(); {
		var l labapi.TraceLine
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		if l.Kind == labapi.TraceOpened {
			l.At = 0
		}
		got = append(got, l)
	}
	want := []labapi.TraceLine{
		{Kind: labapi.TraceOpened, PID: os.Getpid(), N: 1},
		{Kind: api.TraceAttempt, PID: os.Getpid(), N: 2, At: 20, Token: 3, Writes: []history.Write{
			{What: "sequence", Name: "next", First: 5, Last: 9}, {What: "tick", Name: "tick-1000"}, {What: "firing", Name: "a", InstantMS: 7}, {What: "checkpoint", Name: "c"},
		}},
		{Kind: labapi.TraceOpened, PID: os.Getpid(), N: 1},
		{Kind: api.TraceDone, PID: os.Getpid(), N: 2, At: 30, End: 35, Token: 4, What: "unknown"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	if none, err := openTrace("", "node-1", slog.Default()); none != nil || err != nil {
		t.Errorf("a trace that nobody asked for: %v, %v", none, err)
	}
}

// After a trace has lost a line, on a full disk too, it is marked as incomplete and written
// no more: otherwise it would look complete.
func TestTraceLosesLine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tr, err := openTrace(dir, "node-1", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	whole := filepath.Join(dir, labapi.TraceWhole("node-1", os.Getpid()))
	if _, err := os.Stat(whole); err != nil {
		t.Fatal(err)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		if runtime.GOOS == "linux" {
			t.Fatal(err)
		}
		t.Skip("this system has no /dev/full")
	}
	good := tr.file
	tr.file = full
	tr.event(node.Event{Kind: api.TraceAttempt, At: 20, Token: 3})
	if _, err := os.Stat(whole); !errors.Is(err, os.ErrNotExist) || tr.file != nil {
		t.Errorf("a line was lost, and the trace is said to be whole: %v", err)
	}
	_ = good.Close()
}
