package servertest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// ZooKeeperServer is one server of an ensemble.
type ZooKeeperServer struct {
	*Server
	data string
}

// ZooKeeper starts a ZooKeeper ensemble of n servers without data and waits until all serve.
// They are stopped when the test ends. One server is a standalone one. Data survives a killed
// process; it is not forced to the disk. Ticks are 200 ms long, so sessions of 400 ms and more
// are possible. Args are those of the Java virtual machine.
func ZooKeeper(t testing.TB, n int, opts ...Option) []*ZooKeeperServer {
	t.Helper()
	java, classPath := findZooKeeper(t)
	var all []*ZooKeeperServer
	var ensemble strings.Builder
	for i := range n {
		addr, _ := free(t)
		peer, _ := free(t)
		election, _ := free(t)
		if n > 1 {
			_, port, _ := strings.Cut(election, ":")
			fmt.Fprintf(&ensemble, "server.%d=%s:%s\n", i+1, peer, port)
		}
		s := &ZooKeeperServer{
			&Server{t: t, name: fmt.Sprintf("ZooKeeper %d of %d", i+1, n), program: java, addr: addr, url: "zookeeper://" + addr},
			dataDir(t),
		}
		s.ready = func() error { return serves(addr, []byte("srvr"), []byte("Zookeeper version")) }
		all = append(all, s)
	}
	for i, s := range all {
		files := map[string]string{
			"myid": fmt.Sprint(i + 1),
			"zoo.cfg": fmt.Sprintf("tickTime=200\ninitLimit=50\nsyncLimit=10\nmaxClientCnxns=0\nadmin.enableServer=false\n"+
				"4lw.commands.whitelist=srvr\ndataDir=%s\nclientPortAddress=127.0.0.1\nclientPort=%s\n%s",
				s.data, s.addr[strings.LastIndex(s.addr, ":")+1:], ensemble.String()),
		}
		for name, content := range files {
			if err := os.WriteFile(filepath.Join(s.data, name), []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		s.args = append([]string{
			"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", classPath,
			"-Dzookeeper.forceSync=no", "-Dtenure.address=" + s.addr, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		}, collect(opts).args...)
		s.args = append(s.args, "org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(s.data, "zoo.cfg"))
		t.Cleanup(s.end)
	}
	StartZooKeeper(t, all)
	return all
}

// StartZooKeeper starts servers that do not run, and waits until all serve: one alone has no
// quorum.
func StartZooKeeper(t testing.TB, servers []*ZooKeeperServer) {
	t.Helper()
	errs := make([]error, len(servers))
	var all sync.WaitGroup
	for i, s := range servers {
		all.Go(func() { errs[i] = s.start() })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("start ZooKeeper: %v", err)
	}
}

// Backup copies the data of a server that does not run. The returned function puts the copy
// in the place of the data of a server that does not run.
func (s *ZooKeeperServer) Backup() (restore func()) {
	s.t.Helper()
	from, to := filepath.Join(s.data, "version-2"), filepath.Join(s.t.TempDir(), "version-2")
	s.copyData(from, to)
	return func() {
		s.t.Helper()
		s.copyData(to, from)
	}
}

func (s *ZooKeeperServer) copyData(from, to string) {
	s.t.Helper()
	if s.PID() != 0 {
		s.t.Fatalf("copy the data of %s: it is running", s.name)
	}
	err := os.RemoveAll(to)
	if err == nil {
		err = os.CopyFS(to, os.DirFS(from))
	}
	if err == nil {
		err = filepath.Walk(to, func(path string, _ os.FileInfo, err error) error {
			return errors.Join(err, giveAway(path))
		})
	}
	if err != nil {
		s.t.Fatalf("copy the data of %s: %v", s.name, err)
	}
}

// zooKeeperJars are what the server needs of Debian's Java libraries.
var zooKeeperJars = []string{
	"zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-simple", "metrics-core", "snappy-java", "commons-io", "commons-cli",
	"netty-buffer", "netty-codec", "netty-common", "netty-handler", "netty-resolver", "netty-transport",
	"netty-transport-native-epoll", "netty-transport-native-unix-common",
}

// findZooKeeper returns the Java program and the class path. If there is none it skips the test,
// or fails it if CI is set.
func findZooKeeper(t testing.TB) (java, classPath string) {
	t.Helper()
	err := fetch("zookeeper", []string{"zookeeper", "libslf4j-java", "libcommons-io-java", "libcommons-cli-java"}, func(root string) bool {
		// An unpacked tree has only what the machine lacks.
		roots := []string{root, "/"}
		var jars []string
		for _, jar := range zooKeeperJars {
			if path, ok := firstOf(roots, "usr/share/java/"+jar+".jar"); ok {
				jars = append(jars, path)
			}
		}
		classPath = strings.Join(jars, string(filepath.ListSeparator))
		found, err := exec.LookPath("java")
		if java = found; err != nil {
			java, _ = firstOf(roots, "usr/lib/jvm/*/bin/java")
		}
		return len(jars) == len(zooKeeperJars) && java != ""
	})
	if err != nil {
		unavailable(t, "ZooKeeper", err)
	}
	return java, classPath
}

func firstOf(roots []string, pattern string) (string, bool) {
	for _, root := range roots {
		if found, _ := filepath.Glob(filepath.Join(root, pattern)); len(found) > 0 {
			return found[0], true
		}
	}
	return "", false
}
