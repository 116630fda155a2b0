package main

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/store"
)

// TestPeer is the main of a process that campaigns over the socket of a service. It prints the
// status of the answer and lives until its input ends.
func TestPeer(*testing.T) {
	mode := os.Getenv("PEER")
	if mode == "" {
		return
	}
	dial := func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", os.Getenv("PEER_SOCKET"))
	}
	switch mode {
	case "fork": // a child uses the connection
		conn, err := dial(nil, "", "")
		if err != nil {
			panic(err)
		}
		file, _ := conn.(*net.UnixConn).File()
		next := exec.Command("/proc/self/exe", "-test.run=^TestPeer$")
		next.Env, next.ExtraFiles = append(os.Environ(), "PEER=child"), []*os.File{file}
		next.Stdin, next.Stdout, next.Stderr = os.Stdin, os.Stdout, os.Stderr
		if err := next.Run(); err != nil {
			panic(err)
		}
		return
	case "child":
		dial = func(context.Context, string, string) (net.Conn, error) {
			return net.FileConn(os.NewFile(3, "connection"))
		}
	}
	client := &http.Client{Transport: &http.Transport{DialContext: dial}, Timeout: execWait}
	group := os.Getenv("PEER_GROUP")
	res, err := client.Post("http://localhost/v1/groups/"+group+"/campaign", "application/json",
		strings.NewReader(fmt.Sprintf(`{"node_id":"node-1","ttl_ms":%d,"instance":%q}`, (2*execWait).Milliseconds(), os.Getenv("PEER_INSTANCE"))))
	if err != nil {
		fmt.Println("error", os.Getpid())
	} else {
		var p struct{ Code string }
		_ = json.NewDecoder(res.Body).Decode(&p)
		_ = res.Body.Close()
		fmt.Println(cmp.Or(p.Code, strconv.Itoa(res.StatusCode)), os.Getpid())
	}
	if mode == "drop" {
		client.CloseIdleConnections()
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// peer starts a process that campaigns, and returns what it got and its id.
func peer(t *testing.T, mode, socket, group, instance string) (got string, pid int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestPeer$")
	cmd.Env = append(os.Environ(), "PEER="+mode, "PEER_SOCKET="+socket, "PEER_GROUP="+group, "PEER_INSTANCE="+instance)
	var stderr child.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _, _ = io.Copy(io.Discard, out); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if _, serr := fmt.Sscan(line, &got, &pid); err != nil || serr != nil {
		t.Fatalf("%q: %v, %v\n%s", line, err, serr, &stderr)
	}
	return got, pid
}

// A process that campaigned over --keeper-socket loses its session when it dies, and not before:
// not when its connection ends, when it is stopped, or when another process with its instance
// dies. A child cannot use its connection.
func TestKeeperSocket(t *testing.T) {
	e := newExecRig(t)
	socket := filepath.Join(t.TempDir(), "keeper")
	p := startServe(t, "--store="+etcdURL(e.engine.Members[0].Addr()), "--keeper-socket="+socket)
	state := func(group string) store.View {
		v, err := e.store.Read(t.Context(), group)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	kill := func(pid int, sig syscall.Signal) {
		if err := syscall.Kill(pid, sig); err != nil {
			t.Fatal(err)
		}
	}
	lead := func(mode, group, instance string) int {
		got, pid := peer(t, mode, socket, group, instance)
		if got != "200" {
			t.Fatalf("%s: %s\n%s", group, got, p.stderr)
		}
		return pid
	}
	lead("drop", "dropped", rand.Text())
	stopped := lead("stay", "stopped", rand.Text())
	kill(stopped, syscall.SIGSTOP)
	t.Cleanup(func() { kill(stopped, syscall.SIGCONT) })
	instance := rand.Text()
	lead("stay", "registered", instance)
	got, second := peer(t, "stay", socket, "registered", instance)
	if got != "not_registered" {
		t.Errorf("a second process registered the session: %s", got)
	}
	kill(second, syscall.SIGKILL)
	if got, _ := peer(t, "fork", socket, "forked", rand.Text()); got == "200" {
		t.Errorf("a child used the connection of its parent: %s", got)
	}
	if v := state("forked"); v.Token != 0 {
		t.Errorf("%+v", v)
	}
	killed := lead("stay", "killed", rand.Text())
	kill(killed, syscall.SIGKILL)
	began := time.Now()
	until(t, "the killed process leads no more", func() bool { return state("killed").State == tenure.Vacant })
	if v := state("killed"); v.Leader().Reason != string(store.Died) {
		t.Errorf("%+v", v)
	}
	t.Logf("vacant after %v", time.Since(began))
	for _, group := range []string{"dropped", "stopped", "registered"} {
		if v := state(group); v.State != tenure.Led {
			t.Errorf("%s: %+v", group, v)
		}
	}
}
