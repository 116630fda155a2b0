package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/lab/labapi"
)

// Fleet is a fleet that runs.
type Fleet struct {
	cfg     Config
	dir     string
	release func() // releases the lock on dir; may be nil
	proxies *proxies
	engines []*process         // none with raft
	behind  []*process         // the etcd behind an API server of Kubernetes
	server  *servertest.Engine // nil with etcd and raft
	ledgers []*process         // one, when it was prepared
	workers []*process
	nodes   []*process
	names   []labapi.NodeProxies
	public  []string // URLs at which the nodes are called

	life    context.Context // ends when it is to stop
	stop    context.CancelFunc
	guards  sync.WaitGroup
	writing sync.Mutex // of the fleet file
}

// Start starts a fleet and returns when every program is ready; nobody may lead yet. On an
// error it leaves no process and no file.
func Start(ctx context.Context, cfg Config) (*Fleet, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	f := &Fleet{cfg: cfg}
	f.life, f.stop = context.WithCancel(context.WithoutCancel(ctx))
	if err := f.folder(); err != nil {
		f.stop()
		return nil, err
	}
	err := f.startServer(ctx)
	if err == nil {
		ctx, cancel := context.WithTimeoutCause(ctx, startTime, errStart)
		defer cancel()
		err = f.start(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, f.Stop())
	}
	return f, nil
}

var errStart = fmt.Errorf("it took more than %v", startTime)

func (f *Fleet) start(ctx context.Context) error {
	workers := max(f.cfg.Workers, 0)
	// A member of the engine and a node have two ports each: their own and one for peers.
	ports, err := child.FreePorts(1 + 2*f.cfg.Engines + workers + 2*f.cfg.Nodes)
	if err != nil {
		return err
	}
	next := func() string {
		p := ports[0]
		ports = ports[1:]
		return p
	}
	ledgerPort := next()
	var clients []string
	switch {
	case f.server != nil:
		clients = []string{f.server.Addr()}
	case f.cfg.Backend == "etcd":
		clients = f.newEngines(next)
	}
	f.newLedger(ledgerPort)
	for i := range workers {
		id := fmt.Sprint("worker-", i+1)
		if err := os.MkdirAll(filepath.Join(f.dir, id), 0o700); err != nil {
			return err
		}
		f.workers = append(f.workers, f.process(id, fleetProgram, "worker", "--until-eof", "--id", id, "--listen", next(), "--dir", filepath.Join(f.dir, id)))
	}
	if f.proxies, err = startProxies(); err != nil {
		return err
	}
	if err := startAll(ctx, slices.Concat(f.ledgers, f.engines, f.workers)); err != nil {
		return err
	}
	if err := f.newNodes(clients, ledgerPort, next); err != nil {
		return err
	}
	if err := startAll(ctx, f.nodes); err != nil {
		return err
	}
	for _, p := range slices.Concat(f.ledgers, f.engines, f.workers, f.nodes) {
		f.guards.Go(func() { f.supervise(p) })
	}
	return f.write()
}

func (f *Fleet) process(id, program string, args ...string) *process {
	return &process{id: id, path: programPath(f.cfg.Bin, program), args: args, log: filepath.Join(f.dir, id+".log")}
}

// newEngines prepares the members of the engine and returns their addresses. A single
// member has the name engine.
func (f *Fleet) newEngines(next func() string) (clients []string) {
	var ids, members, peers []string
	for i := range f.cfg.Engines {
		id := "engine"
		if f.cfg.Engines > 1 {
			id = fmt.Sprint("engine-", i+1)
		}
		ids, clients, peers = append(ids, id), append(clients, next()), append(peers, next())
		members = append(members, id+"="+peers[i])
	}
	for i, id := range ids {
		args := []string{"-until-eof", "-name", id, "-data-dir", filepath.Join(f.dir, id), "-client", clients[i], "-peer", peers[i]}
		if len(ids) > 1 {
			args = append(args, "-members", strings.Join(members, ","))
		}
		f.engines = append(f.engines, f.process(id, engineProgram, args...))
	}
	return clients
}

func (f *Fleet) newLedger(port string) {
	args := []string{"ledger", "--until-eof", "--listen", port, "--db", f.db()}
	if f.cfg.Unfenced {
		args = append(args, "--fencing", "off")
	}
	if f.cfg.KeepAll {
		args = append(args, "--rejections", "10000000", "--history", "100000000")
	}
	f.ledgers = []*process{f.process("ledger", fleetProgram, append(args, f.cfg.LedgerArgs...)...)}
}

func (f *Fleet) db() string {
	return cmp.Or(f.cfg.DB, filepath.Join(f.dir, "ledger.db"))
}

func (f *Fleet) newNodes(engines []string, ledgerPort string, next func() string) error {
	var workers, peers []string
	for _, w := range f.workers {
		workers = append(workers, w.at())
	}
	listen, at := make([]string, f.cfg.Nodes), make([]string, f.cfg.Nodes)
	for i := range listen {
		listen[i], at[i] = next(), next()
		peers = append(peers, fmt.Sprintf("node-%d=%s", i+1, at[i]))
	}
	for i := range f.cfg.Nodes {
		id := fmt.Sprint("node-", i+1)
		ledger, public := ledgerPort, listen[i]
		var endpoints []string
		var names labapi.NodeProxies
		through := func(name *string, what string, at *string) error {
			var err error
			*name = id + "-" + what
			*at, err = f.proxies.add(*name, *at)
			return err
		}
		var err error
		for j, p := range f.engines {
			at := engines[j]
			if !f.cfg.Direct {
				var name string
				err = errors.Join(err, through(&name, p.id, &at))
				if names.Engines == nil {
					names.Engine, names.Engines = name, map[string]string{}
				}
				names.Engines[p.id] = name
			}
			endpoints = append(endpoints, at)
		}
		if !f.cfg.Direct {
			err = errors.Join(err, through(&names.Ledger, "ledger", &ledger))
		}
		if f.cfg.ClientProxies {
			err = errors.Join(err, through(&names.Client, "client", &public))
		}
		if err != nil {
			return err
		}
		args := []string{"node", "--until-eof", "--id", id, "--group", f.cfg.Group, "--listen", listen[i], "--advertise", "http://" + public,
			"--ledger", "http://" + ledger}
		if len(workers) > 0 {
			args = append(args, "--workers", strings.Join(workers, ","))
		}
		if len(f.engines) > 0 {
			store, err := f.store(id, endpoints)
			if err != nil {
				return err
			}
			args = append(args, "--store", store, "--lease-ttl", f.cfg.TTL.String())
		} else {
			args = append(args, "--store", "raft", "--peers", strings.Join(peers, ","), "--data-dir", filepath.Join(f.dir, id))
			through, err := f.peerProxies(id, at, &names)
			if err != nil {
				return err
			}
			args = append(args, through...)
		}
		if f.cfg.Pulse {
			args = append(args, "--keeper", "auto")
		}
		args = append(args, f.cfg.NodeArgs...)
		if f.cfg.EachNode != nil {
			args = append(args, f.cfg.EachNode(i+1)...)
		}
		f.nodes = append(f.nodes, f.process(id, fleetProgram, args...))
		f.names = append(f.names, names)
		f.public = append(f.public, "http://"+public)
	}
	return nil
}

// peerProxies puts a proxy between a node and each peer, and returns the node's arguments.
func (f *Fleet) peerProxies(id string, peers []string, names *labapi.NodeProxies) (args []string, err error) {
	if f.cfg.Direct {
		return nil, nil
	}
	names.Peers = map[string]string{}
	var through []string
	for i, at := range peers {
		peer := fmt.Sprint("node-", i+1)
		if peer == id {
			continue
		}
		name := id + "-" + peer
		proxy, err := f.proxies.add(name, at)
		if err != nil {
			return nil, err
		}
		names.Peers[peer] = name
		through = append(through, peer+"="+proxy)
	}
	if len(through) == 0 {
		return nil, nil
	}
	return []string{"--peer-proxies", strings.Join(through, ",")}, nil
}

func startAll(ctx context.Context, all []*process) error {
	errs := make([]error, len(all))
	together(all, func(i int) { errs[i] = all[i].start(ctx) })
	return errors.Join(errs...)
}

func stopAll(all []*process) { together(all, func(i int) { all[i].stop() }) }

func together(all []*process, do func(int)) {
	var wait sync.WaitGroup
	for i := range all {
		wait.Go(func() { do(i) })
	}
	wait.Wait()
}

// Stop stops the programs, nodes and workers first, and removes all files. A program that
// does not exit in time is killed.
func (f *Fleet) Stop() error {
	f.stop()
	f.guards.Wait()
	stopAll(slices.Concat(f.nodes, f.workers))
	stopAll(slices.Concat(f.engines, f.ledgers))
	stopAll(f.behind)
	if f.server != nil {
		f.server.Stop()
	}
	var err error
	if f.proxies != nil {
		err = f.proxies.close()
	}
	if rerr := os.Remove(f.Path()); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	if f.cfg.Dir == "" {
		err = errors.Join(err, os.RemoveAll(f.dir))
		if f.release != nil {
			f.release()
		}
	}
	return err
}
