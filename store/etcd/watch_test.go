package etcd_test

import (
	"bufio"
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store/storetest"
)

// told waits until an observer has been told of a token.
func told(t *testing.T, leaders <-chan tenure.Leader, term *tenure.Term, within time.Duration) {
	t.Helper()
	limit := time.After(within)
	for {
		select {
		case l := <-leaders:
			if l.State == tenure.Led && l.Token == term.Token() {
				return
			}
		case <-limit:
			t.Fatalf("not told of token %d in %v", term.Token(), within)
		}
	}
}

// observe follows the leaders of a group until the test ends.
func observe(t *testing.T, e *lease.Elector) <-chan tenure.Leader {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	leaders := make(chan tenure.Leader, 100)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for l, err := range e.Leaders(ctx) {
			if err == nil {
				leaders <- l
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return leaders
}

// A watch leaves a member that was killed, stopped or black-holed within seconds,
// and a new one does not wait for it: whoever watches learns who leads.
func TestWatchMoves(t *testing.T) {
	cluster := enginetest.Cluster(t, 3, enginetest.FastTicks())
	timing := lease.Timing{TTL: 5 * time.Second}
	const within = 8 * time.Second // twice the silence that is suffered, and a bit
	member := cluster.Members[0]
	proxy := member.Proxy()
	others := cluster.Endpoints()[1:]
	behind := append([]string{proxy.Endpoint()}, others...)
	a := storetest.Elector(t, storetest.Node(t, open(t, others), "a", timing, "g"), "g")
	for _, fault := range []struct {
		name         string
		strike, heal func()
	}{
		{"black-holed", proxy.Cut, proxy.Heal},
		{"killed", member.Kill, member.Restart},
		// The last: a leader of etcd that was stopped revokes living leases when it goes on.
		{"stopped", member.Pause, member.Resume},
	} {
		t.Run(fault.name, func(t *testing.T) {
			term := storetest.Lead(t, a)
			seen := observe(t, storetest.Elector(t, storetest.Node(t, open(t, behind), "b", timing, "g"), "g"))
			late := open(t, behind)
			told(t, seen, term, within)
			fault.strike()
			defer fault.heal()
			if err := term.Resign(t.Context()); err != nil {
				t.Fatal(err)
			}
			term = storetest.Lead(t, a)
			told(t, seen, term, within)
			told(t, observe(t, storetest.Elector(t, storetest.Node(t, late, "c", timing, "g"), "g")), term, within)
			if err := term.Resign(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// messages counts what a member has received so far, by method.
func messages(t *testing.T, endpoint string) map[string]int {
	t.Helper()
	resp, err := http.Get(endpoint + "/metrics") //nolint:noctx // it answers or the test ends
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	all := map[string]int{}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		rest, ok := strings.CutPrefix(lines.Text(), "grpc_server_msg_received_total{")
		if _, method, found := strings.Cut(rest, `grpc_method="`); ok && found {
			name, _, _ := strings.Cut(method, `"`)
			n, _ := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
			all[name] += int(n)
		}
	}
	return all
}

// Candidates at rest send a keep-alive and the read behind it, and hardly anything else: their
// watches ask for no sign of life while keep-alives are answered.
func TestMessagesAtRest(t *testing.T) {
	cluster := enginetest.Cluster(t, 1)
	endpoint := cluster.Endpoints()[0]
	leading := storetest.Lead(t, storetest.Elector(t, storetest.Node(t, open(t, cluster.Endpoints()), "a", lease.Timing{TTL: 4 * time.Second}, "g"), "g"))
	b := storetest.Elector(t, storetest.Node(t, open(t, cluster.Endpoints()), "b", lease.Timing{TTL: 4 * time.Second}, "g"), "g")
	go func() { _, _ = b.Campaign(t.Context()) }()
	storetest.Wait(t, 3*time.Second)
	before := messages(t, endpoint)
	storetest.Wait(t, 10*time.Second)
	after := messages(t, endpoint)
	beats, reads, watches := after["LeaseKeepAlive"]-before["LeaseKeepAlive"], after["Txn"]-before["Txn"], after["Watch"]-before["Watch"]
	if err := leading.Check(); err != nil {
		t.Fatal(err)
	}
	if beats == 0 || reads > beats+2 || watches > beats/4 {
		t.Errorf("%d keep-alives, %d reads, %d messages of watches", beats, reads, watches)
	}
}
