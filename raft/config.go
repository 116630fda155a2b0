package raft

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"strings"

	hraft "github.com/hashicorp/raft"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
)

// Config is what a node says about itself. Candidate.ID, Group, DataDir and Peers
// are required; everything else has a default.
type Config struct {
	// Candidate is how this node is known to the others; its ID is also its name
	// in the Raft cluster.
	Candidate tenure.Candidate
	// Group is what the cluster elects a leader of: one cluster, one group.
	Group string
	// Peers are the addresses (host:port) of the first members by id, including this node.
	// Every node of a new cluster must have the same. A data directory with state ignores
	// them. Even numbers are refused: they tolerate no more failures than one node fewer.
	Peers map[string]string
	// Join makes the node ask Peers, members of an existing cluster, for admission, instead
	// of starting a new cluster. Advertise is then required.
	Join bool
	// Listen is the address to listen on. Default Advertise.
	Listen string
	// Advertise is the address at which the others reach this node. Default its
	// own address among Peers.
	Advertise string
	// DataDir holds the log, the votes and the snapshots of this node, and nothing
	// else. Open creates it if it is missing, and fails if the disk has less than four
	// megabytes free. A node that lost its directory has lost its votes: it must come back
	// under a new id.
	DataDir string
	// TLS, if set, authenticates nodes to each other, in both directions: it needs a
	// certificate and RootCAs; ClientCAs default to RootCAs. Without it everybody who can
	// reach the port can take part.
	TLS *tls.Config
	// Dial reaches a peer. Default net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Keeper, if set, tells the other members at once when this process has died while it led:
	// see Notices. Without it they notice after a Heartbeat.
	Keeper Keeper
	// Timing has the intervals and timeouts. The zero Timing is Default().
	Timing
	// Clock measures trust and patience. Default clock.System().
	Clock clock.Clock
	// Log gets log lines. Default slog.Default().
	Log *slog.Logger

	// logs wraps the log store: tests stall it.
	logs func(hraft.LogStore) hraft.LogStore
}

const (
	maxPeers    = 99
	maxAddress  = 512
	maxMetadata = 4096
	nameRule    = "1 to 63 of a-z 0-9 . _ -, beginning with a letter or digit"
)

// Validate refuses what cannot work. Every error names the field, the value and
// the rule.
func (c Config) Validate() error {
	c = c.resolve()
	var broken []error
	rule := func(holds bool, field, value, format string, args ...any) {
		if !holds {
			broken = append(broken, &ConfigError{Field: field, Value: value, Rule: fmt.Sprintf(format, args...)})
		}
	}
	rule(validName(c.Candidate.ID), "candidate id", c.Candidate.ID, nameRule)
	rule(validName(c.Group), "group", c.Group, nameRule)
	rule(len(c.Candidate.Address) <= maxAddress, "candidate address", "", "at most %d bytes, not %d", maxAddress, len(c.Candidate.Address))
	size := 0
	for k, v := range c.Candidate.Metadata {
		size += len(k) + len(v)
	}
	rule(size <= maxMetadata, "candidate metadata", "", "at most %d bytes in all, not %d", maxMetadata, size)
	rule(c.DataDir != "", "data directory", "", "must be given")

	rule(len(c.Peers) > 0 && len(c.Peers) <= maxPeers, "peers", "", "from 1 to %d, not %d", maxPeers, len(c.Peers))
	seen := map[string]string{}
	for id, address := range c.Peers {
		rule(validName(id), "peer id", id, nameRule)
		rule(validAddress(address), "address of peer "+id, address, "must be host:port")
		rule(seen[address] == "", "address of peer "+id, address, "is also that of %s", seen[address])
		seen[address] = id
	}
	if c.Join {
		rule(c.Advertise != "", "advertise", "", "must be given to join: it is not among the peers")
	} else {
		n := len(c.Peers)
		rule(n != 2, "peers", "", "2 nodes need both for a quorum, so they tolerate no failure; give 1 or 3")
		rule(n == 2 || n%2 == 1 || n == 0, "peers", "", "%d nodes tolerate %d failures, as %d do; give %d or %d", n, (n-1)/2, n-1, n-1, n+1)
		_, member := c.Peers[c.Candidate.ID]
		rule(member, "peers", "", "%q is not among %v: give every node the same peers, itself included, or set Join", c.Candidate.ID, c.peerIDs())
		rule(!member || c.Advertise == c.Peers[c.Candidate.ID], "advertise", c.Advertise, "its peers know this node as %q", c.Peers[c.Candidate.ID])
	}
	rule(c.Advertise == "" || validAddress(c.Advertise), "advertise", c.Advertise, "must be host:port")
	// An empty host means every interface, which only a listener can use.
	rule(c.Listen == "" || validAddress(c.Listen) || validAddress("any"+c.Listen), "listen", c.Listen, "must be host:port or :port")
	if err := c.Timing.Validate(); err != nil {
		broken = append(broken, err)
	}
	return errors.Join(broken...)
}

func (c Config) resolve() Config {
	if !c.Join {
		c.Advertise = cmp.Or(c.Advertise, c.Peers[c.Candidate.ID])
	}
	c.Listen = cmp.Or(c.Listen, c.Advertise)
	c.Timing = cmp.Or(c.Timing, Default()).Resolve()
	if c.Dial == nil {
		c.Dial = (&net.Dialer{}).DialContext
	}
	c.Clock = cmp.Or(c.Clock, clock.System())
	c.Log = cmp.Or(c.Log, slog.Default()).With("group", c.Group, "node", c.Candidate.ID)
	return c
}

func (c Config) peerIDs() []string { return slices.Sorted(maps.Keys(c.Peers)) }

func validName(s string) bool {
	const most = 63
	if s == "" || len(s) > most || strings.IndexByte("._-", s[0]) >= 0 {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789._-") == ""
}

func validAddress(s string) bool {
	host, port, err := net.SplitHostPort(s)
	return err == nil && host != "" && port != "" && len(s) <= maxAddress && !strings.ContainsAny(s, "@ ")
}
