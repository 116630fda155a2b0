package lab

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"
)

// CanPulse: keepers work on this platform.
const CanPulse = runtime.GOOS == "linux"

// Config describes the fleet to run. The zero value of a field is its default.
type Config struct {
	// Bin is the folder of the programs; see FindPrograms.
	Bin string
	// Dir is for data and logs; empty: a temporary folder, removed at the end.
	Dir string
	// File is where the fleet file is written. Default fleet.json in Dir.
	File string

	// Group is what the nodes elect a leader of. Default billing.
	Group string
	// Backend is etcd (the default), raft, or an engine of Servers.
	Backend string
	// Nodes and Workers are how many. Default 3 and 2; -1 workers is none.
	Nodes, Workers int
	// Engines is how many members the engine has, if it is etcd. Default 1.
	Engines int
	// TTL of the lease. Default 3s.
	TTL time.Duration
	// DB is the ledger's database. Default a SQLite file in Dir.
	DB string
	// Unfenced turns the ledger's fence off, for experiments.
	Unfenced bool
	// KeepAll makes the ledger keep everything that a run can write, so that it can be
	// counted.
	KeepAll bool
	// NodeArgs and LedgerArgs are further arguments of each node and of the ledger.
	NodeArgs, LedgerArgs []string
	// EachNode, if given, returns further arguments of the node with that number, from 1.
	EachNode func(int) []string

	// Pulse gives each node a keeper, which ends its session as soon as it has died. Where the
	// platform has none, the TTL applies.
	Pulse bool

	// Direct uses no proxies between the nodes and what they call.
	Direct bool
	// ClientProxies puts proxies in front of the nodes too.
	ClientProxies bool

	// Restart restarts a program that ended without having been asked to.
	Restart bool
	// RestartWait is how long to wait before that. Default 1s.
	RestartWait time.Duration
	// Event, if given, is called with messages about the programs.
	Event func(string)
}

// startTime bounds the start of each program, stopTime its shutdown.
const (
	startTime = 30 * time.Second
	stopTime  = 4 * time.Second
)

func (c Config) withDefaults() Config {
	c.Group, c.Backend = cmp.Or(c.Group, "billing"), cmp.Or(c.Backend, "etcd")
	c.Nodes, c.Engines, c.Workers = cmp.Or(c.Nodes, 3), cmp.Or(c.Engines, 1), cmp.Or(c.Workers, 2)
	c.TTL, c.RestartWait = cmp.Or(c.TTL, 3*time.Second), cmp.Or(c.RestartWait, time.Second)
	if c.Event == nil {
		c.Event = func(string) {}
	}
	return c
}

// Validate returns what is wrong.
func (c Config) Validate() error {
	var all []error
	bad := func(format string, args ...any) { all = append(all, fmt.Errorf(format, args...)) }
	const most = 64
	if all := Backends(); c.Backend != "" && !slices.Contains(all, c.Backend) {
		bad("backend: %q is not one of %s", c.Backend, strings.Join(all, ", "))
	}
	if c.Nodes < 0 || c.Nodes > most || c.Workers < -1 || c.Workers > most {
		bad("nodes and workers: %d and %d; use at most %d each", c.Nodes, c.Workers, most)
	}
	const members = 7
	if c.Engines < 0 || c.Engines > members || c.Engines > 1 && c.Backend != "" && c.Backend != "etcd" {
		bad("engines: %d; use at most %d with etcd, and 1 with other engines; with raft the nodes are the engine", c.Engines, members)
	}
	if c.TTL < 0 || c.RestartWait < 0 {
		bad("ttl and restart wait: %v and %v; neither can be negative", c.TTL, c.RestartWait)
	}
	return errors.Join(all...)
}
