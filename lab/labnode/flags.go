package labnode

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/tenurehq/tenure/reference/command"
	"github.com/tenurehq/tenure/reference/node"
)

// Flags adds the flags of the hooks to those of a node. The function that it returns makes
// the hooks when the flags are known, and returns what ends them: see command.Node.
func Flags(f *pflag.FlagSet, cfg *node.Config) func() (end func(), err error) {
	var c Config
	f.DurationVar(&c.ClockSkew, "clock-skew", 0, "how far this node's wall clock is off")
	f.Func("clock-drift", "how much faster this node's clocks run: a fraction, 5% or 500ppm", drift(&c.ClockDrift))
	f.Func("peer-proxies", "where this node reaches Raft peers instead, as id=host:port,…", command.Peers(&c.PeerProxies))
	f.DurationVar(&c.RaftLease, "raft-lease", 0, "how long Raft itself lets a leader continue without a quorum (default 3/4 of --election-timeout)")
	f.DurationVar(&c.StopDelay, "stop-delay", 0, "how long a leader continues after it was told to stop")
	f.StringVar(&c.Trace, "trace", "", "folder for the trace of every event")
	plantFlag(f, &c)
	return func() (func(), error) {
		c.ID, c.Log = cfg.ID, cfg.Log
		if err := c.Validate(cfg.Store); err != nil {
			return nil, err
		}
		h, err := New(c)
		if err != nil {
			return nil, err
		}
		cfg.Hooks = h
		return h.Close, nil
	}
}

// drift reads a fraction, as such or in percent or parts per million.
func drift(to *float64) func(string) error {
	return func(s string) error {
		number, unit := s, 1.0
		if n, ok := strings.CutSuffix(s, "%"); ok {
			number, unit = n, 100
		} else if n, ok := strings.CutSuffix(s, "ppm"); ok {
			number, unit = n, 1e6
		}
		f, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
		if err != nil {
			return fmt.Errorf("%q is not a rate such as 0.05, 5%% or 500ppm", s)
		}
		*to = f / unit
		return nil
	}
}
