package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/service"
)

// On a disk whose syncs fail, a transfer is never reported as done unless the successor leads
// after the service was restarted. The process ends by itself with the cause, and its data
// directory can be used afterwards.
func TestServeFailingDisk(t *testing.T) {
	for _, force := range []bool{false, true} {
		t.Run(fmt.Sprintf("force %v", force), func(t *testing.T) {
			data := filepath.Join(t.TempDir(), "data")
			p := startServe(t, "--data-dir", data, "--ttl", "20s")
			var l service.Leading
			p.until("POST", "/v1/groups/billing/campaign", service.CampaignRequest{NodeID: "a"}, &l)
			var b service.Session
			if status := p.call("POST", "/v1/sessions", service.SessionRequest{NodeID: "b", Groups: []string{"billing"}}, &b); status != 201 {
				t.Fatalf("a session for b: %d", status)
			}

			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			pid := fmt.Sprint(p.Process.Pid)
			fault := servertest.Command(t, "strace", "-f", "-qq", "-o", filepath.Join(t.TempDir(), "strace"), "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:error=EIO", "-p", pid)
			if err := fault.Start(); err != nil {
				t.Fatal(err)
			}
			for !traced(t, pid) {
				if ctx.Err() != nil {
					t.Fatal("strace does not attach")
				}
				time.Sleep(5 * time.Millisecond)
			}

			path := "/v1/groups/billing/transfer?to=b&wait=5s"
			if force {
				path += "&force=true"
			}
			var out service.SteppedDown
			status := p.call("POST", path, nil, &out)
			done := status == 200 && (out.Outcome == "done" || out.Outcome == "forced")
			exited := make(chan struct{})
			go func() {
				defer close(exited)
				_ = p.Wait()
			}()
			select {
			case <-exited:
			case <-time.After(30 * time.Second):
				t.Error("it does not end, though its disk fails")
				_ = p.Process.Kill()
				<-exited
			}
			_ = fault.Wait()
			if said := p.stderr.String(); p.ProcessState.ExitCode() != cli.ExitFailure || !strings.Contains(said, "input/output error") {
				t.Errorf("ended with %v: %s", p.ProcessState, said)
			}

			p.launch("127.0.0.1:0")
			var now service.Leader
			leads := p.call("GET", "/v1/groups/billing/leader", nil, &now)
			if done && (leads != 200 || now.LeaderNodeID != "b") {
				t.Errorf("the transfer was answered %d %+v, and after the restart %d %+v leads", status, out, leads, now)
			}
			t.Logf("the transfer: %d %+v; after the restart: %d %+v", status, out, leads, now)
		})
	}
}

func traced(t *testing.T, pid string) bool {
	t.Helper()
	tasks, err := filepath.Glob("/proc/" + pid + "/task/*/status")
	if err != nil || len(tasks) == 0 {
		t.Fatalf("the process is gone: %v", err)
	}
	for _, task := range tasks {
		if text, err := os.ReadFile(task); err == nil && strings.Contains(string(text), "TracerPid:\t0\n") {
			return false
		}
	}
	return true
}
