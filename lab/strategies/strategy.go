package strategies

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// Elector makes a process a candidate. It is what all strategies have in common.
type Elector interface {
	// Campaign returns when this process leads. An error is temporary.
	Campaign(ctx context.Context) (Term, error)
	Close()
}

// Term is one leadership.
type Term struct {
	// Token grows with every term; 0: the strategy has none.
	Token uint64
	// Believes reports whether the leader would begin a write now.
	Believes func() bool
	// Stop gives the leadership up. The work has ended.
	Stop func(ctx context.Context) error
}

// Config is the configuration of a candidate's process.
type Config struct {
	Strategy string
	// ID counts from 0; Nodes is the number of candidates.
	ID, Nodes int
	Group     string
	TTL       time.Duration
	// Listen is where this candidate is reached, Peers are those addresses of all.
	Listen string
	Peers  []string
	// Links are the addresses of the proxies to what this candidate calls: all candidates by id,
	// or all servers.
	Links []string
	// Dir keeps its data.
	Dir string
	// Step is the time between the check of a leader and the write that follows.
	Step time.Duration
	// Think is the time between the read and the write of a flag.
	Think time.Duration
	// Manual: elections begin only when the candidate is told to begin one.
	Manual bool
	// Timing of Tenure's lease: the TTL alone if it is zero.
	Beat   time.Duration
	Misses int
}

func (c Config) beat() time.Duration { return c.TTL / 4 }

// sent counts messages: beats keep a leadership, others try to change it.
type sent struct {
	beats, others atomic.Int64
	renewed       atomic.Int64 // how long the latest keep-alive of Tenure took
}

// strategy is one row of the table of strategies.
type strategy struct {
	name  string
	title string
	// servers is how many servers of an engine it uses; peers: it uses none, the candidates talk
	// to each other.
	engine  string
	servers int
	// token: it gives a growing token.
	token bool
	open  func(ctx context.Context, c Config, n *sent) (Elector, error)
}

const (
	peers    = "peers"
	flagName = "flag"
)

func all() []strategy {
	return []strategy{
		{"bully", "Bully", peers, 0, false, openPeers},
		{"ring", "Ring", peers, 0, false, openPeers},
		{flagName, "Database flag", "postgres", 1, false, openFlag},
		{"advisory", "PostgreSQL advisory lock", "postgres", 1, true, openAdvisory},
		{"redis-blind", "Redis SET NX PX, extended blindly", "redis", 1, false, openRedis},
		{"redis-delete", "Redis SET NX PX, deleted blindly", "redis", 1, false, openRedis},
		{"redis-token", "Redis lock with owner and token", "redis", 1, true, openRedis},
		{"redlock", "Redlock", "redis", 5, false, openRedlock},
		{"zookeeper", "ZooKeeper recipe", "zookeeper", 3, true, openZooKeeper},
		{"tenure-etcd", "Tenure on etcd", "etcd", 3, true, openTenure},
		{"tenure-raft", "Tenure on Raft", peers, 0, true, openRaft},
		{"tenure-postgres", "Tenure on PostgreSQL", "postgres", 1, true, openTenure},
		{"tenure-zookeeper", "Tenure on ZooKeeper", "zookeeper", 3, true, openTenure},
		{"tenure-redis", "Tenure on Redis", "redis", 1, true, openTenure},
	}
}

// Names lists the strategies.
func Names() (names []string) {
	for _, s := range all() {
		names = append(names, s.name)
	}
	return names
}

func find(name string) (strategy, error) {
	i := slices.Index(Names(), name)
	if i < 0 {
		return strategy{}, fmt.Errorf("there is no strategy %q; there are %s", name, strings.Join(Names(), ", "))
	}
	return all()[i], nil
}

// fault is one row of the table of faults.
type fault struct {
	name string
	what string
	// cannot says why a strategy cannot have it; empty: it can.
	cannot func(s strategy, nodes int) string
	inject func(*round, context.Context) error
}

func always(strategy, int) string { return "" }

func faults() []fault {
	return []fault{
		{"kill", "the leader is killed", always, (*round).kill},
		{"pause", "the leader is stopped for longer than its lease, and goes on", always, (*round).pause},
		{"minority", "the leader is cut off from everything but the resource", always, (*round).minority},
		{"split", "two of five candidates and servers, the leader among them, are cut off from the rest", func(_ strategy, nodes int) string {
			if nodes < 5 {
				return fmt.Sprintf("a split in two and three needs 5 candidates, there are %d: see --nodes", nodes)
			}
			return ""
		}, (*round).split},
		{"one-way", "the leader's messages arrive and the answers do not; between peers: its messages are lost", always, (*round).oneWay},
		{"heal", "the leader is cut off until another leads, and comes back", always, (*round).heal},
		{"churn", "three leaders are killed one after the other, and come back", always, (*round).churn},
		{"member", "one of several servers is killed", func(s strategy, _ int) string {
			if s.servers < 2 {
				return fmt.Sprintf("it has %d servers, and the fault kills one of several", s.servers)
			}
			return ""
		}, (*round).member},
		{"no-quorum", "no candidate reaches any other or any server", always, (*round).noQuorum},
	}
}

// Faults lists the faults.
func Faults() (names []string) {
	for _, f := range faults() {
		names = append(names, f.name)
	}
	return names
}

func findFault(name string) (fault, error) {
	i := slices.Index(Faults(), name)
	if i < 0 {
		return fault{}, fmt.Errorf("there is no fault %q; there are %s", name, strings.Join(Faults(), ", "))
	}
	return faults()[i], nil
}
