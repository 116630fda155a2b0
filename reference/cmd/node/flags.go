package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/tenurehq/tenure/reference/node"
)

type settings struct {
	node.Config
	untilEOF, verbose bool
}

// errUsage: the flag package has said what is wrong.
var errUsage = errors.New("usage")

// parse reads flags, environment and file. Where one of them says something wrong, it
// says where that stands.
func parse(args []string, env func(string) (string, bool), stderr io.Writer) (settings, error) {
	var s settings
	var file, passwordFile string
	fs := flag.NewFlagSet("node", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&s.ID, "id", "", "name of this node in its fleet")
	fs.StringVar(&s.Group, "group", "", "what the fleet elects a leader of, and the ledger's resource")
	fs.StringVar(&s.Listen, "listen", "127.0.0.1:0", "host:port to serve on, port 0 is a free one")
	fs.StringVar(&s.Advertise, "advertise", "", "URL at which others reach this node (default that of -listen)")
	fs.Func("hosts", "further names by which callers reach this node, besides localhost and IP addresses, separated by commas", list(&s.Hosts))
	fs.BoolVar(&s.Insecure, "insecure", false, "listen beyond loopback, where everybody can call")
	fs.StringVar(&s.Backend, "backend", "", "etcd, raft, or mem for a single node")
	fs.Func("endpoints", "URLs of etcd's members, separated by commas", list(&s.Endpoints))
	fs.StringVar(&s.Prefix, "prefix", "", `prefix of every key in etcd (default "/tenure")`)
	fs.StringVar(&s.Username, "username", "", "etcd user")
	fs.StringVar(&passwordFile, "password-file", "", "file with its password (or TENURE_NODE_PASSWORD)")
	fs.StringVar(&s.TLS.Cert, "cert", "", "certificate for etcd or for the Raft peers, PEM file")
	fs.StringVar(&s.TLS.Key, "key", "", "its key, PEM file")
	fs.StringVar(&s.TLS.CA, "ca", "", "who signs the certificates of the others, PEM file")
	fs.Func("peers", "all Raft nodes as id=host:port,id=host:port,…", peers(&s.Peers))
	fs.StringVar(&s.DataDir, "data-dir", "", "directory of the Raft log and votes")
	fs.DurationVar(&s.ElectionTimeout, "election-timeout", 0, "how long a Raft follower waits for its leader (default 1s)")
	fs.StringVar(&s.Ledger, "ledger", "", "URL of the ledger")
	fs.Func("workers", "URLs of the workers, separated by commas", list(&s.Workers))
	fs.DurationVar(&s.TTL, "lease-ttl", 0, "how long a session outlives its last keep-alive: what a crash costs (default 8s)")
	fs.DurationVar(&s.Beat, "renew-interval", 0, "time between keep-alives (default a quarter of the TTL)")
	fs.IntVar(&s.Misses, "misses", 0, "keep-alives in a row that may be missed before it is said aloud (default 3)")
	fs.DurationVar(&s.Tick, "tick", 0, "time between the scheduler's ticks (default 1s)")
	fs.DurationVar(&s.MisfireGrace, "misfire-grace", 0, "how late a firing may be without being a misfire (default two ticks, at least 2s)")
	fs.DurationVar(&s.RTO, "rto", 0, "time that a failover may take; each phase has its share (default 30s)")
	fs.DurationVar(&s.SinkPatience, "sink-patience", 0, "how long the ledger may be out of reach before the leader steps down (default the TTL)")
	fs.DurationVar(&s.WriteTimeout, "write-timeout", 0, "longest write of the leader (default the TTL, from 1s to 5s)")
	fs.DurationVar(&s.StopTimeout, "stop-timeout", 0, "longest handover when the node is asked to stop; then the process is ended (default the TTL)")
	fs.IntVar(&s.Batch, "batch", 0, "callers of /next that share a write at most; 1 commits each call alone (default 8192)")
	fs.StringVar(&s.AdminTokenFile, "admin-token-file", "", "file with the credential for /resign and /transfer from other hosts")
	fs.IntVar(&s.HTTP.Connections, "connections", 0, "how many connections may be open (default 4096)")
	fs.BoolVar(&s.Lab, "lab", false, "this is an experiment: serve the hooks under /lab")
	fs.DurationVar(&s.ClockSkew, "clock-skew", 0, "how far this node's wall clock is off, with -lab")
	fs.Func("clock-drift", "how much faster this node's clocks run: a fraction, 5% or 500ppm, with -lab", drift(&s.ClockDrift))
	fs.Func("peer-proxies", "where this node reaches Raft peers instead, as id=host:port,…, with -lab", peers(&s.PeerProxies))
	fs.DurationVar(&s.RaftLease, "raft-lease", 0, "how long Raft itself lets a leader go on without a quorum (default 3/4 of -election-timeout), with -lab")
	fs.DurationVar(&s.StopDelay, "stop-delay", 0, "how long a leader goes on after it was told to stop, with -lab")
	fs.StringVar(&s.Trace, "trace", "", "folder in which the node writes down what it does and sees, with -lab")
	fs.StringVar(&file, "config", "", "file with lines of flag = value")
	fs.BoolVar(&s.untilEOF, "until-eof", false, "stop when standard input ends, for programs that start nodes and may die")
	fs.BoolVar(&s.verbose, "v", false, "say more")
	plantFlag(fs, &s.Config)
	fs.Usage = func() {
		_, _ = fmt.Fprintf(stderr, "usage: node -id ID -group GROUP -backend etcd|raft|mem -ledger URL [flags]\nA flag -x-y can be given as TENURE_NODE_X_Y, or as x-y = value in the file of -config.\n")
		fs.PrintDefaults()
	}
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return s, err
	case err != nil:
		return s, errUsage
	case fs.NArg() > 0:
		return s, fmt.Errorf("unexpected argument %q: flags only", fs.Arg(0))
	}
	if err := fromEnvironment(fs, env); err != nil {
		return s, err
	}
	if file != "" {
		if err := fromFile(fs, file); err != nil {
			return s, err
		}
	}
	s.Password, _ = env("TENURE_NODE_PASSWORD")
	if passwordFile != "" {
		data, err := os.ReadFile(passwordFile)
		if err != nil {
			return s, fmt.Errorf("password-file: %w", err)
		}
		s.Password = strings.TrimSpace(string(data))
	}
	return s, s.Validate()
}

// given are the flags that somebody has set.
func given(fs *flag.FlagSet) map[string]bool {
	set := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { set[f.Name] = true })
	return set
}

// fromEnvironment sets the flags that were not given.
func fromEnvironment(fs *flag.FlagSet, env func(string) (string, bool)) error {
	set := given(fs)
	var wrong error
	fs.VisitAll(func(f *flag.Flag) {
		name := "TENURE_NODE_" + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		if v, ok := env(name); ok && v != "" && !set[f.Name] {
			if err := fs.Set(f.Name, v); err != nil {
				wrong = errors.Join(wrong, fmt.Errorf("environment %s=%q: %w", name, v, err))
			}
		}
	})
	return wrong
}

// fromFile sets the flags that were given nowhere else. Empty lines, and lines that
// begin with #, say nothing.
func fromFile(fs *flag.FlagSet, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	defer func() { _ = f.Close() }()
	set := given(fs)
	const most = 1 << 20
	var wrong error
	lines := bufio.NewScanner(io.LimitReader(f, most))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		name, value = strings.TrimLeft(strings.TrimSpace(name), "-"), strings.TrimSpace(value)
		switch {
		case !ok:
			wrong = errors.Join(wrong, fmt.Errorf("%s:%d: %.64q is not flag = value", path, n, line))
		case fs.Lookup(name) == nil || name == "config":
			wrong = errors.Join(wrong, fmt.Errorf("%s:%d: there is no flag %.64q", path, n, name))
		case !set[name]:
			if err := fs.Set(name, value); err != nil {
				wrong = errors.Join(wrong, fmt.Errorf("%s:%d: %s: %w", path, n, name, err))
			}
		}
	}
	return errors.Join(wrong, lines.Err())
}

// list reads items between commas.
func list(to *[]string) func(string) error {
	return func(s string) error {
		*to = nil
		for item := range strings.SplitSeq(s, ",") {
			if item = strings.TrimSpace(item); item != "" {
				*to = append(*to, item)
			}
		}
		return nil
	}
}

func peers(to *map[string]string) func(string) error {
	return func(s string) error {
		*to = map[string]string{}
		for item := range strings.SplitSeq(s, ",") {
			id, address, ok := strings.Cut(strings.TrimSpace(item), "=")
			if !ok {
				return fmt.Errorf("%q is not id=host:port", item)
			}
			if _, twice := (*to)[id]; twice {
				return fmt.Errorf("%q is named twice", id)
			}
			(*to)[id] = address
		}
		return nil
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
			return fmt.Errorf("%q is no rate: 0.05, 5%% or 500ppm", s)
		}
		*to = f / unit
		return nil
	}
}
