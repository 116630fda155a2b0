package tenuretest_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/tenuretest"
)

// win campaigns and requires that it leads.
func win(t *testing.T, n *tenuretest.Node) *tenure.Term {
	t.Helper()
	term, err := n.Elector("g").Campaign(t.Context())
	if err != nil {
		t.Fatalf("%s does not lead: %v", n.ID(), err)
	}
	return term
}

// want requires that the store shows a as the leader, or as the last one.
func want(t *testing.T, k *tenuretest.Kit, state tenure.State) {
	t.Helper()
	if l := k.Leader("g"); l.State != state || l.Candidate.ID != "a" {
		t.Fatalf("the store says %v by %q, want %v by a", l.State, l.Candidate.ID, state)
	}
}

// cause requires that the term has ended for that reason.
func cause(t *testing.T, term *tenure.Term, reason error) {
	t.Helper()
	select {
	case <-term.Context().Done():
	default:
		t.Fatal("the term's context has not ended")
	}
	if err := context.Cause(term.Context()); !errors.Is(err, reason) {
		t.Fatalf("the term ended with %v, want %v", err, reason)
	}
}

var timing = lease.Default()

// Nodes and store use the bubble's time: a term lasts while it is kept alive, for virtual
// days in no real time.
func TestTimeIsVirtual(t *testing.T) {
	outside := time.Now()
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		start := time.Now()
		term := win(t, k.Node("a"))
		k.Advance(6 * time.Hour)
		if got := time.Since(start); got != 6*time.Hour {
			t.Errorf("%v have passed, want 6h", got)
		}
		if err := term.Check(); err != nil {
			t.Error(err)
		}
		want(t, k, tenure.Led)
	})
	if took := time.Since(outside); took > time.Minute {
		t.Errorf("six hours took %v", took)
	}
}

// A change applies to the configurations it is meant for: of all nodes, or of one.
func TestChange(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		a := win(t, k.Node("a"))
		if r := a.Remaining(); r > 4*time.Second {
			t.Errorf("trust lasts %v with a TTL of 4 s", r)
		}
		b := k.Node("b", tenuretest.WithTiming(lease.Timing{TTL: time.Hour}))
		term, err := b.Elector("h").Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if r := term.Remaining(); r < 50*time.Minute {
			t.Errorf("trust lasts %v with a TTL of an hour", r)
		}
	}, tenuretest.WithTiming(lease.Timing{TTL: 4 * time.Second}))
}

// A paused node receives and sends nothing, its term's context does not end, and Check says
// that the term is over. It notices when it resumes.
func TestPause(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		a := k.Node("a")
		term := win(t, a)
		a.Pause()
		k.Advance(time.Hour)
		want(t, k, tenure.Vacant)
		if err := term.Context().Err(); err != nil {
			t.Fatalf("a paused node ended its term: %v", err)
		}
		if r := term.Remaining(); r > 0 {
			t.Fatalf("after an hour of pause the term has %v left", r)
		}
		a.Resume()
		k.Settle()
		cause(t, term, tenure.ErrExpired)
	})
}

// Check reads the clock during a pause, before anything else resumes.
func TestPauseCheck(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		a := k.Node("a")
		term := win(t, a)
		a.Pause()
		k.Advance(timing.TTL)
		if err := term.Check(); !errors.Is(err, tenure.ErrExpired) {
			t.Fatalf("Check after the TTL: %v, want ErrExpired", err)
		}
	})
}

// A paused node notices no deadline: a call that it makes during the pause does not fail
// before it resumes.
func TestPauseHoldsDeadlines(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		a := k.Node("a")
		term := win(t, a)
		a.Pause()
		k.Advance(term.Remaining() - timing.CallTimeout/2)
		won := make(chan error, 1)
		go func() {
			_, err := a.Elector("h").Campaign(t.Context())
			won <- err
		}()
		k.Advance(time.Hour)
		if err := term.Context().Err(); err != nil {
			t.Fatal("it ended its term when the call ran out of time")
		}
		a.Resume()
		if err := <-won; err != nil {
			t.Error(err)
		}
	})
}

// A pause that is shorter than trust changes nothing.
func TestShortPause(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		a := k.Node("a")
		term := win(t, a)
		for range 10 {
			k.Advance(timing.Beat / 3)
			a.Pause()
			k.Advance(timing.TTL / 2)
			a.Resume()
			k.Advance(timing.TTL)
		}
		if err := term.Check(); err != nil {
			t.Fatal(err)
		}
	})
}

// A waiting candidate that is paused wins nothing before it resumes.
func TestPausedCandidate(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		a, b := k.Node("a"), k.Node("b")
		first := win(t, a)
		won := make(chan *tenure.Term, 1)
		go func() {
			term, _ := b.Elector("g").Campaign(t.Context())
			won <- term
		}()
		k.Settle()
		b.Pause()
		if err := first.Resign(t.Context()); err != nil {
			t.Fatal(err)
		}
		k.Advance(time.Second)
		want(t, k, tenure.Vacant)
		b.Resume()
		if term := <-won; term.Token() <= first.Token() {
			t.Fatalf("token %d after %d", term.Token(), first.Token())
		}
	})
}

// A node that is cut off believes until its trust ends and not longer. After that the store
// grants its group to another, and once healed the node can lead again.
func TestPartition(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		a, b := k.Node("a"), k.Node("b")
		opened := time.Now()
		old := win(t, a)
		a.Partition()
		left := old.Remaining()
		k.Advance(left - 1)
		if err := old.Check(); err != nil {
			t.Fatalf("it has 1 ns of trust left: %v", err)
		}
		want(t, k, tenure.Led)
		k.Advance(1)
		cause(t, old, tenure.ErrExpired)
		want(t, k, tenure.Led) // its session has not expired
		next := win(t, b)
		if d := time.Since(opened); d != timing.TTL {
			t.Errorf("b leads after %v, want the TTL: no keep-alive of a has come through", d)
		}
		k.Advance(3 * timing.TTL)
		if err := next.Check(); err != nil {
			t.Fatal(err)
		}

		a.Heal()
		_ = old.Resign(t.Context()) // its work has stopped
		go func() {
			k.Advance(timing.TTL)
			_ = next.Resign(t.Context())
		}()
		if again := win(t, a); again.Token() <= next.Token() {
			t.Fatalf("token %d after %d", again.Token(), next.Token())
		}
	})
}

// Reads through a node that is cut off are unknown: Leader returns that at its deadline,
// Leaders after a while, and both work again when the node is healed.
func TestBlind(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		a, b := k.Node("a"), k.Node("b")
		win(t, a)
		var seen []tenure.Leader
		go func() {
			for l := range b.Elector("g").Leaders(t.Context()) {
				seen = append(seen, l)
			}
		}()
		k.Settle()
		if len(seen) != 1 || seen[0].State != tenure.Led {
			t.Fatalf("at first: %v", seen)
		}
		b.Partition()
		if l, err := b.Elector("g").Leader(t.Context()); err == nil || l.State != tenure.Unknown {
			t.Fatalf("Leader of a node that is cut off: %v, %v", l.State, err)
		}
		k.Advance(timing.CallTimeout)
		if l := seen[len(seen)-1]; l.State != tenure.Unknown {
			t.Fatalf("Leaders of a node that is cut off: %v", l.State)
		}
		for _, l := range seen {
			if l.State == tenure.Vacant {
				t.Fatal("vacant, because it could not be seen")
			}
		}
		b.Heal()
		k.Advance(timing.TTL)
		if l := seen[len(seen)-1]; l.State != tenure.Led {
			t.Fatalf("after the partition: %v", l.State)
		}
	})
}

// A caller that reads through a paused node is not frozen with it.
func TestReadThroughPause(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		a := k.Node("a")
		term := win(t, a)
		a.Pause()
		if l, err := a.Elector("g").Leader(t.Context()); err == nil || l.State != tenure.Unknown {
			t.Errorf("Leader of a paused node: %v, %v", l.State, err)
		}
		if err := term.TransferTo(t.Context(), "b"); err == nil {
			t.Error("a paused node has transferred its term")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for l := range a.Elector("g").Leaders(ctx) {
			t.Errorf("Leaders of a paused node: %v", l.State)
		}
	})
}

// Expire ends the session at the store. The node learns that from its watch; a paused one
// does not.
func TestExpire(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		a := k.Node("a")
		first := win(t, a)
		a.Expire()
		k.Settle()
		cause(t, first, tenure.ErrLost)
		if l := k.Leader("g"); l.Reason != string(store.Expired) {
			t.Errorf("the store says %q, want expired", l.Reason)
		}
		_ = first.Resign(t.Context()) // its work has stopped
		second := win(t, a)
		a.Pause()
		a.Expire()
		k.Settle()
		want(t, k, tenure.Vacant)
		if err := second.Check(); err != nil {
			t.Fatalf("a paused node knows of its session: %v", err)
		}
	})
}

// A node without a session cannot lose it: Expire panics.
func TestExpireNothing(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		defer func() {
			if r, _ := recover().(string); !strings.Contains(r, "no session to expire") {
				t.Errorf("panic %q", r)
			}
		}()
		k.Node("a").Expire()
	})
}

// A crashed node sends nothing to the store: it holds its group until the TTL is over, to the
// nanosecond. In the process its terms end and its campaigns fail.
func TestCrash(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		if _, err := k.Node("b").Elector("h").Campaign(t.Context()); err != nil {
			t.Fatal(err)
		}
		a := k.Node("a")
		opened := time.Now()
		term := win(t, a)
		waits := make(chan error, 1)
		go func() {
			_, err := a.Elector("h").Campaign(t.Context())
			waits <- err
		}()
		k.Advance(time.Until(opened.Add(timing.Beat)))
		seen := make(chan tenure.Leader, 1)
		go func() {
			for l := range a.Elector("g").Leaders(t.Context()) {
				select {
				case seen <- l:
				default: // two events are enough
				}
			}
		}()
		if l := <-seen; l.State != tenure.Led {
			t.Errorf("before the crash: %v", l.State)
		}
		k.Settle()
		a.Crash() // after its first beat
		k.Settle()
		if len(seen) != 1 || (<-seen).State != tenure.Unknown {
			t.Error("an observer in the crashed node is not told that it sees nothing")
		}
		if term.Check() == nil {
			t.Error("the term of a crashed node has not ended")
		}
		k.Advance(time.Until(opened.Add(timing.Beat + timing.TTL - 1)))
		want(t, k, tenure.Led)
		k.Advance(1)
		want(t, k, tenure.Vacant)
		if err := <-waits; !errors.Is(err, lease.ErrClosed) {
			t.Errorf("a campaign of a crashed node: %v", err)
		}
		if _, err := a.Elector("g").Campaign(t.Context()); !errors.Is(err, lease.ErrClosed) {
			t.Errorf("a campaign after the crash: %v", err)
		}
		if l, err := a.Elector("g").Leader(t.Context()); err == nil || l.State != tenure.Unknown {
			t.Errorf("the crashed node answers: %v", l.State)
		}
	})
}

// A crash closes nothing: the sessions of nodes that led nothing stay candidates until they
// expire, too.
func TestCrashSaysNothing(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		win(t, k.Node("a"))
		line := func() int {
			sessions, err := k.Store().Sessions(t.Context(), store.Scope{"*"}, store.Page{})
			if err != nil {
				t.Fatal(err)
			}
			return len(sessions)
		}
		const many = 20
		var nodes []*tenuretest.Node
		for range many {
			n := k.Node("b")
			go func() { _, _ = n.Elector("g").Campaign(t.Context()) }()
			nodes = append(nodes, n)
		}
		k.Settle()
		for _, n := range nodes {
			n.Crash()
		}
		k.Settle()
		if n := line(); n != 1+many {
			t.Errorf("%d sessions after the crash, want %d", n, 1+many)
		}
		k.Advance(timing.TTL)
		if n := line(); n != 1 {
			t.Errorf("%d sessions a TTL later, want 1", n)
		}
	})
}

// Goroutines of the test have time to end after its context has.
func TestTimeToEnd(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, _ *tenuretest.Kit) {
		go func() {
			<-t.Context().Done()
			time.Sleep(timing.TTL)
		}()
	})
}

// A kit that is left with its faults set can be closed.
func TestLeftInTrouble(t *testing.T) {
	tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
		win(t, k.Node("a"))
		for _, trouble := range []func(*tenuretest.Node){
			(*tenuretest.Node).Pause, (*tenuretest.Node).Partition, (*tenuretest.Node).Crash,
		} {
			n := k.Node("b")
			go func() { _, _ = n.Elector("g").Campaign(t.Context()) }()
			k.Settle()
			trouble(n)
		}
	})
}

// A node that crashes in a pause or a partition is gone like any other, and a new one with
// the same id can lead.
func TestCrashInTrouble(t *testing.T) {
	for name, trouble := range map[string]func(*tenuretest.Node){
		"paused":  (*tenuretest.Node).Pause,
		"cut off": (*tenuretest.Node).Partition,
	} {
		t.Run(name, func(t *testing.T) {
			tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
				a := k.Node("a")
				old := win(t, a)
				k.Advance(timing.Beat)
				trouble(a)
				k.Advance(timing.Beat + timing.Beat/2) // a keep-alive is pending
				a.Crash()
				if next := win(t, k.Node("a")); next.Token() <= old.Token() {
					t.Errorf("token %d after %d", next.Token(), old.Token())
				}
			})
		})
	}
}

// The sink applies the rule and records the writes.
func TestSink(t *testing.T) {
	stamp := func(token fence.Token) fence.Stamp {
		return fence.Stamp{Deployment: "d", Group: "g", Token: token}
	}
	var s tenuretest.Sink
	ctx := t.Context()
	if err := s.Write(ctx, stamp(1), "one"); err != nil {
		t.Fatal(err)
	}
	if err := s.Seal(ctx, stamp(3)); err != nil {
		t.Fatal(err)
	}
	var stale *fence.StaleError
	if err := s.Write(ctx, stamp(2), "two"); !errors.As(err, &stale) || stale.Mark.Token != 3 {
		t.Errorf("a write below the seal: %v", err)
	}
	if err := s.Seal(ctx, stamp(2)); !errors.Is(err, fence.ErrRefused) {
		t.Errorf("a seal below the seal: %v", err)
	}
	if err := s.Write(ctx, stamp(3), "three"); err != nil {
		t.Error(err)
	}
	broken := errors.New("disk full")
	s.Break(broken)
	if err := s.Write(ctx, stamp(3), "four"); !errors.Is(err, broken) {
		t.Errorf("a write to a broken sink: %v", err)
	}
	if err := s.Seal(ctx, stamp(4)); !errors.Is(err, broken) {
		t.Errorf("a seal of a broken sink: %v", err)
	}
	s.Break(nil)
	over, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.Write(over, stamp(4), "five"); !errors.Is(err, context.Canceled) {
		t.Errorf("a write whose context has ended: %v", err)
	}
	if m := s.Mark(); m.Token != 3 {
		t.Errorf("the mark is at %d, want 3", m.Token)
	}
	values := func(ws []tenuretest.Write) (all string) {
		for _, w := range ws {
			all += w.Value.(string) + " "
		}
		return all
	}
	if got := values(s.Writes()); got != "one three " {
		t.Errorf("written: %s", got)
	}
	if got := values(s.Refused()); got != "two four five " {
		t.Errorf("refused: %s", got)
	}
	if r := s.Refused(); !errors.As(r[0].Err, &stale) || r[0].Stamp != stamp(2) {
		t.Errorf("the first refusal is remembered as %v", r[0])
	}
}

// A leaked goroutine and an invalid node fail the test. They would fail this one too, so it
// runs them in a separate process.
func TestRunFails(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, says := range map[string]string{
		"goroutine": "blocked goroutines remain",
		"config":    `tenuretest: node "A B": candidate id is "A B"`,
	} {
		cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestFailing$", "-test.v")
		cmd.Env = append(os.Environ(), failing+"="+name)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			t.Errorf("%s: the test passes (%v)", name, err)
		}
		if !strings.Contains(string(out), says) {
			t.Errorf("%s: it does not say %q but\n%s", name, says, out)
		}
	}
}

const failing = "TENURETEST_FAILING"

// The other process of TestRunFails.
func TestFailing(t *testing.T) {
	switch os.Getenv(failing) {
	case "goroutine":
		tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) {
			go func() {
				for {
					k.Advance(time.Second)
				}
			}()
		})
	case "config":
		tenuretest.Run(t, func(t *testing.T, k *tenuretest.Kit) { k.Node("A B") })
	default:
		t.Skip("only for TestRunFails")
	}
}

// The example in the package comment is the test that runs.
func TestDocExample(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(source), "\nfunc TestZombie")
	code, _, found := strings.Cut(code, "\n}\n")
	if !found {
		t.Fatal("TestZombie is not where it is looked for")
	}
	if shown := strings.ReplaceAll(string(doc), "\n//\t", "\n"); !strings.Contains(shown, code) {
		t.Errorf("the comment of the package does not show:\nfunc TestZombie%s\n}", code)
	}
}
