package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/lab/load"
	fleetclient "github.com/tenurehq/tenure/reference/client"
)

// Up runs a fleet until ctx ends, says what happens in it, and stops it. It calls /next at
// the given rate, so that there is something to see; 0 makes no calls.
func Up(ctx context.Context, cfg Config, rate float64, line *Timeline) error {
	cfg.Event = func(s string) { line.Say("%s", s) }
	cfg.Restart = true
	f, err := Start(ctx, cfg)
	if err != nil {
		return err
	}
	file := f.File()
	line.Say("%s; the fleet file is %s", Inventory(file), f.Path())
	narrator, err := newNarrator(file, line)
	if err != nil {
		return errors.Join(err, f.Stop())
	}
	var wait sync.WaitGroup
	wait.Go(func() { narrator.run(ctx) })
	wait.Go(func() {
		if l, err := narrator.fleet.Leader(ctx); err == nil {
			line.Show(hints(file, f.Path(), l))
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
	engine := fmt.Sprintf("embedded etcd (TTL %v)", time.Duration(file.TTLMS)*time.Millisecond)
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
			select { // the narrator says that nobody leads
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

// hints are commands to try next.
func hints(file labapi.FleetFile, path string, leader fleetclient.Leader) string {
	other := file.Nodes[0]
	var pid int
	var cut string
	for _, n := range file.Nodes {
		if n.ID != leader.ID {
			other = n
			continue
		}
		pid = n.PID
		if n.Proxies.Engine != "" {
			cut = file.Proxies.API + "/proxies/" + n.Proxies.Engine + "/toxics"
		}
	}
	var b strings.Builder
	try := func(what, why string) { fmt.Fprintf(&b, "    %s\n        %s\n", what, why) }
	b.WriteString("\nwhat to try next:\n")
	try("curl -s -X POST "+leader.URL+"/next", "take a number; the other nodes answer 409 and name the leader")
	try("curl -s "+other.URL+"/status", "show the state of a node")
	try("curl -s -X PUT -d '{\"limit\":5}' "+other.URL+"/records/limits", "write a record; this needs no leader, so any node accepts it")
	if other.ID != leader.ID {
		try(fmt.Sprintf("curl -s -X POST '%s/transfer?to=%s'", leader.URL, other.ID), "hand the leadership over")
	}
	try(fmt.Sprintf("kill -9 %d", pid), "kill "+leader.ID+", which leads now; the fleet file has the other pids")
	try(fmt.Sprintf("kill -STOP %d; sleep 6; kill -CONT %d", pid, pid), "stop it for longer than its lease, then resume it")
	if cut != "" {
		try(fmt.Sprintf("curl -s -d '{\"name\":\"cut\",\"type\":\"timeout\",\"attributes\":{\"timeout\":0}}' %s", cut), "cut it off the engine; undo with curl -s -X DELETE "+cut+"/cut")
	}
	try(os.Args[0]+" load --fleet "+path+" --rate 2000 --for 10s", "measure how long it takes to take numbers")
	b.WriteString("Ctrl-C stops everything.\n\n")
	return b.String()
}
