package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurehq/tenure/server/service"
)

// `tenure serve` with its own engine listens only on the configured address. Another user can
// reach neither the engine's socket nor its data. It keeps the terms of a data directory that
// was written while the engine had a TCP port, as every engine had before.
func TestServePrivate(t *testing.T) {
	// Another user can reach this directory, unlike a test's own.
	public, err := os.MkdirTemp("", "tenure-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(public) })
	if err := os.Chmod(public, 0o755); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(public, "data")

	p := startServe(t, "--data-dir", data, "--ttl", "3s", "--engine-listen", "127.0.0.1:0")
	var l service.Leading
	p.until("POST", "/v1/groups/billing/campaign", service.CampaignRequest{NodeID: "a"}, &l)
	var out service.Resigned
	p.until("POST", "/v1/groups/billing/resign", service.ResignRequest{NodeID: "a", Term: l.Term, Handle: l.Handle}, &out)
	want := []string{p.ready.Addr, strings.TrimPrefix(p.ready.Store[0], "http://")}
	if got := listening(t, p.Process.Pid); !sameElements(got, want) {
		t.Errorf("told to listen on %q, it listens on %q", want, got)
	}
	p.stop()

	p.args = []string{"--data-dir", data, "--ttl", "3s"}
	for term := 2; term <= 3; term++ {
		p.ready.Store = nil
		p.launch("127.0.0.1:0")
		p.until("POST", "/v1/groups/billing/campaign", service.CampaignRequest{NodeID: "a"}, &l)
		if int(l.Term) != term {
			t.Errorf("term %d, want %d", l.Term, term)
		}
		if got, want := listening(t, p.Process.Pid), []string{p.ready.Addr}; !sameElements(got, want) || len(p.ready.Store) > 0 {
			t.Errorf("told to listen on %q, it listens on %q and names the store %q", want, got, p.ready.Store)
		}
		tryAsOtherUser(t, data)
		p.until("POST", "/v1/groups/billing/resign", service.ResignRequest{NodeID: "a", Term: l.Term, Handle: l.Handle}, &out)
		if term == 2 {
			_ = p.Process.Kill() // leaves its socket behind
			_ = p.Wait()
		}
	}
}

// stop sends SIGTERM.
func (p *serveProcess) stop() {
	p.t.Helper()
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	timer := time.AfterFunc(time.Minute, func() { _ = p.Process.Kill() })
	defer timer.Stop()
	_ = p.Wait()
	if code := p.ProcessState.ExitCode(); code != 0 {
		p.t.Fatalf("stopped with %d: %s", code, p.stderr)
	}
}

func sameElements(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// listening returns the TCP addresses on which a process listens.
func listening(t *testing.T, pid int) []string {
	t.Helper()
	fds := fmt.Sprintf("/proc/%d/fd", pid)
	open, err := os.ReadDir(fds)
	if err != nil {
		t.Fatal(err)
	}
	sockets := map[string]bool{}
	for _, fd := range open {
		if to, err := os.Readlink(filepath.Join(fds, fd.Name())); err == nil {
			sockets[to] = true
		}
	}
	var found []string
	for _, table := range []string{"tcp", "tcp6"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if errors.Is(err, fs.ErrNotExist) && table == "tcp6" {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			// sl local_address rem_address st … inode; state 0A is LISTEN.
			f := strings.Fields(line)
			if len(f) > 9 && f[3] == "0A" && sockets["socket:["+f[9]+"]"] {
				found = append(found, procAddress(t, f[1]))
			}
		}
	}
	return found
}

// procAddress reads "0100007F:1F90": words of the host's byte order, and the port.
func procAddress(t *testing.T, s string) string {
	t.Helper()
	host, port, _ := strings.Cut(s, ":")
	raw, err := hex.DecodeString(host)
	n, perr := strconv.ParseUint(port, 16, 16)
	if err != nil || perr != nil {
		t.Fatalf("%q: %v, %v", s, err, perr)
	}
	for i := 0; i < len(raw); i += 4 {
		binary.BigEndian.PutUint32(raw[i:], binary.NativeEndian.Uint32(raw[i:]))
	}
	addr, _ := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(addr, uint16(n)).String()
}

// tryAsOtherUser tries to read the data and to connect to the engine as another user.
func tryAsOtherUser(t *testing.T, data string) {
	t.Helper()
	socket := filepath.Join(data, "client", "etcd.sock")
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatalf("the owner cannot connect: %v", err)
	}
	_ = c.Close()
	if os.Getuid() != 0 {
		t.Log("only root can be somebody else: that others cannot connect was not tested")
		return
	}
	const nobody = 65534
	found := make(chan string)
	go func() {
		// Only this thread changes its user, and it ends with the goroutine.
		runtime.LockOSThread()
		if err := errors.Join(syscall.Setfsgid(nobody), syscall.Setfsuid(nobody)); err != nil {
			found <- err.Error()
			return
		}
		if own, err := os.ReadFile("/proc/thread-self/status"); err != nil || !bytes.Contains(own, []byte("\t65534\n")) {
			found <- fmt.Sprintf("it is still the owner: %v", err)
			return
		}
		if _, err := os.ReadDir(data); !errors.Is(err, fs.ErrPermission) {
			found <- fmt.Sprintf("another user reads the data directory: %v", err)
			return
		}
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		if err == nil {
			err = syscall.Connect(fd, &syscall.SockaddrUnix{Name: socket})
			_ = syscall.Close(fd)
		}
		if !errors.Is(err, fs.ErrPermission) {
			found <- fmt.Sprintf("another user connects to the engine: %v", err)
			return
		}
		found <- ""
	}()
	if wrong := <-found; wrong != "" {
		t.Error(wrong)
	}
}
