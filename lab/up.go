package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/lab/load"
)

// Up runs a fleet until ctx ends, reports what happens in it, and stops it. It calls /next at
// the given rate, so that there is activity to show; 0 makes no calls.
func Up(ctx context.Context, cfg Config, rate float64, line *Timeline) error {
	cfg.Event = func(s string) { line.Say("%s", s) }
	cfg.Restart = true
	f, err := Start(ctx, cfg)
	if err != nil {
		return err
	}
	file := f.File()
	line.Say("%s; the fleet file is %s", Inventory(file), f.Path())
	if cfg.Pulse {
		line.Say("each node has a keeper: a leader that is killed is replaced within milliseconds, and not after the TTL")
	}
	narrator, err := newNarrator(file, line)
	if err != nil {
		return errors.Join(err, f.Stop())
	}
	var wait sync.WaitGroup
	wait.Go(func() { narrator.run(ctx) })
	wait.Go(func() {
		if _, err := narrator.fleet.Leader(ctx); err == nil {
			line.Show(hints(file, f.Path(), cfg.Pulse))
		}
	})
	if rate > 0 {
		wait.Go(func() { callers(ctx, nodeURLs(file), rate) })
	}
	<-ctx.Done()
	line.Say("stopping the fleet: %v", context.Cause(ctx))
	wait.Wait()
	if err := f.Stop(); err != nil {
		return err
	}
	line.Say("all processes and files of the fleet are gone")
	return nil
}

// Inventory describes what runs.
func Inventory(file labapi.FleetFile) string {
	name := file.Backend
	if name == "etcd" {
		name = "embedded etcd"
	}
	engine := fmt.Sprintf("%s (TTL %v)", name, time.Duration(file.TTLMS)*time.Millisecond)
	if file.Engine.PID == 0 {
		engine = "Raft among the nodes"
	}
	return fmt.Sprintf("running: %s, the ledger, %d nodes, %d workers", engine, len(file.Nodes), len(file.Workers))
}

// callers call /next until ctx ends.
func callers(ctx context.Context, urls []string, rate float64) {
	const few = 16
	for ctx.Err() == nil {
		cfg := load.Config{URLs: urls, Rate: rate, Connections: few, For: time.Hour, Timeout: 2 * time.Second}
		if _, err := load.Run(ctx, cfg); err != nil {
			select { // the narrator reports that nobody leads
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

func nodeURLs(file labapi.FleetFile) (urls []string) {
	for _, n := range file.Nodes {
		urls = append(urls, n.URL)
	}
	return urls
}

// hints are commands to try next. They find the leader when they run: a process id or a URL
// of the leader would be wrong after the first change.
func hints(file labapi.FleetFile, path string, pulse bool) string {
	node := file.Nodes[0].URL
	self := os.Args[0]
	chaos := filepath.Join(filepath.Dir(self), "chaos")
	var b strings.Builder
	try := func(what, why string) { fmt.Fprintf(&b, "    %s\n        %s\n", what, why) }
	b.WriteString("\nwhat to try next:\n")
	try(chaos+" list", "show the processes of the fleet, and who leads")
	try("curl -s "+node+"/status", "show the state of a node")
	try("curl -s -X PUT -d '{\"limit\":5}' "+node+"/records/limits", "write a record; this needs no leader, so any node accepts it")
	try(chaos+" transfer-leader", "hand the leadership over to another node")
	killed := "another leads when its lease has expired"
	if pulse {
		killed = "its keeper lets another lead within milliseconds"
	}
	try(chaos+" kill-leader", "kill the process of the leader: "+killed+"; the fleet restarts it")
	try(chaos+" gc-pause-leader", "stop the leader for longer than its lease, then resume it")
	if file.Engine.PID != 0 {
		try(chaos+" partition-leader", "cut the leader off the engine for a while")
	}
	try(self+" load --fleet "+path+" --rate 2000 --for 10s", "take numbers from the leader, and measure how long it takes")
	b.WriteString("Ctrl-C stops everything.\n\n")
	return b.String()
}
