package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A job that five hosts start under one key of --once runs once, whether they start it in
// the same second or one second apart. TENURE_ROUNDS sets the number of rounds.
func TestExecCron(t *testing.T) {
	rounds, given := execRounds(t)
	if !given {
		rounds = 2
	}
	t.Cleanup(func() { t.Logf("cron: %d rounds; failed: %v", 2*rounds, t.Failed()) })
	e := newExecRig(t)
	addr := etcdURL(e.engine.Members[0].Addr())
	for _, apart := range []time.Duration{0, time.Second} {
		for n := range rounds {
			t.Run(fmt.Sprintf("%v apart/%d", apart, n), func(t *testing.T) {
				t.Parallel()
				log := filepath.Join(t.TempDir(), "ran")
				var hosts []*wrapped
				for i := range 5 {
					if i > 0 {
						time.Sleep(apart)
					}
					hosts = append(hosts, execute(t, addr, "cron"+apart.String()+"-"+strconv.Itoa(n),
						[]string{"--ttl=30s", "--once=nightly-2026-11-16", "--id=host-" + strconv.Itoa(i)}, "sh", "-c", `echo "$TENURE_NODE" >> `+log))
				}
				for i, w := range hosts {
					if code := w.code(); code != 0 {
						t.Errorf("host %d: exit code %d\n%s", i, code, &w.stderr)
					}
				}
				if text, err := os.ReadFile(log); err != nil || strings.Count(string(text), "\n") != 1 {
					t.Errorf("it ran on %q, %v", text, err)
				}
			})
		}
	}
}
