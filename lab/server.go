package lab

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/internal/servertest"
)

// Servers lists the engines that run as one server of another project. A fleet starts a real one,
// which is installed or built first if it is missing: that needs a checkout, and for Consul and
// Kubernetes ten minutes, once.
func Servers() []string { return servertest.Engines() }

// Backends lists all engines that a fleet can run on.
func Backends() []string { return append([]string{"etcd", "raft"}, Servers()...) }

// startServer starts the server of the engine, and the etcd behind it if it needs one. The fleet
// sees one engine with one member.
func (f *Fleet) startServer(ctx context.Context) error {
	if f.cfg.Backend == "etcd" || f.cfg.Backend == "raft" {
		return nil
	}
	const engine = "engine"
	etcd := ""
	if servertest.NeedsEtcd(f.cfg.Backend) {
		ports, err := child.FreePorts(2)
		if err != nil {
			return err
		}
		p := f.process("etcd", engineProgram, "-until-eof", "-name", "etcd", "-data-dir", filepath.Join(f.dir, engine), "-client", ports[0], "-peer", ports[1])
		ctx, cancel := context.WithTimeoutCause(ctx, startTime, errStart)
		defer cancel()
		f.behind = []*process{p}
		if err := p.start(ctx); err != nil {
			return err
		}
		etcd = p.at()
	}
	s, err := servertest.Start(f.cfg.Backend, etcd)
	if err != nil {
		return err
	}
	f.server = s
	f.engines = []*process{{id: engine, url: "tcp://" + s.Addr(), launch: s.Launch}}
	return nil
}

// store returns the URL of the engine for a node.
func (f *Fleet) store(node string, endpoints []string) (string, error) {
	if f.server == nil {
		return "etcd://" + strings.Join(endpoints, ","), nil
	}
	dir := filepath.Join(f.dir, node)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return f.server.Store(endpoints[0], dir)
}
