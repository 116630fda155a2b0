package mem

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
)

const second = clock.Instant(time.Second)

// open begins a session with a TTL of ten seconds that stands for everything.
func open(t testing.TB, s *State, now clock.Instant, name string) lease.SessionID {
	t.Helper()
	n, err := s.Open(now, tenure.Candidate{ID: name}, 10*time.Second, lease.OpenOptions{Scope: lease.Scope{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	return n.ID
}

// acquire takes groups from their present versions.
func acquire(t testing.TB, s *State, now clock.Instant, id lease.SessionID, groups ...string) []lease.Record {
	t.Helper()
	granted, err := s.Acquire(now, id, seen(t, s, now, groups...)...)
	if err != nil {
		t.Fatal(err)
	}
	return granted
}

func seen(t testing.TB, s *State, now clock.Instant, groups ...string) []lease.Record {
	t.Helper()
	var records []lease.Record
	for _, g := range groups {
		records = append(records, read(t, s, now, g).Record)
	}
	return records
}

func read(t testing.TB, s *State, now clock.Instant, group string) lease.View {
	t.Helper()
	v, err := s.Read(now, group)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func want[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

func wantErr(t testing.TB, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s answered %v, want %v", what, got, want)
	}
}

// A session lives until its deadline and not at it, and a keep-alive counts
// from when it was received.
func TestExpiry(t *testing.T) {
	s := NewState(Options{})
	id := open(t, s, 0, "a")
	acquire(t, s, 0, id, "g")
	s.Changed()
	want(t, "next expiry", s.NextExpiry(), 10*second)
	if _, err := s.KeepAlive(10*second-1, id); err != nil {
		t.Fatalf("dead a nanosecond before its TTL: %v", err)
	}
	want(t, "next expiry", s.NextExpiry(), 20*second-1)
	want(t, "state before the deadline", read(t, s, 20*second-2, "g").State, tenure.Led)
	want(t, "state at the deadline", read(t, s, 20*second-1, "g").State, tenure.Vacant)
	_, err := s.KeepAlive(20*second-1, id)
	wantErr(t, "keep-alive of a dead session", err, lease.ErrSessionDead)
	want(t, "changed", fmt.Sprint(s.Changed()), "[g]")
	want(t, "changed again", len(s.Changed()), 0)
	want(t, "next expiry of nobody", s.NextExpiry(), clock.Never)
}

// Sessions die in the order of their deadlines, whatever the order of their
// keep-alives was, and everything a session holds is vacated by its death.
func TestDeathsInOrder(t *testing.T) {
	s := NewState(Options{})
	a, b, c := open(t, s, 0, "a"), open(t, s, 0, "b"), open(t, s, 0, "c")
	acquire(t, s, 0, a, "a1", "a2")
	acquire(t, s, 0, b, "b1")
	acquire(t, s, 0, c, "c1")
	for i, id := range []lease.SessionID{c, a, b} {
		if _, err := s.KeepAlive(clock.Instant(i+1), id); err != nil {
			t.Fatal(err)
		}
	}
	s.Changed()
	s.Expire(100 * second)
	want(t, "order of vacancies", fmt.Sprint(s.Changed()), "[c1 a1 a2 b1]")
}

// The term of a holder that died is closed in the record at once, with the time
// and reason of the death, though the version stays; the slices handed out
// before do not change.
func TestTermsClose(t *testing.T) {
	for _, c := range []struct {
		name   string
		end    func(*State, lease.SessionID)
		reason lease.Reason
		at     clock.Instant
	}{
		{"expiry", func(s *State, id lease.SessionID) { s.Expire(30 * second) }, lease.Expired, 10 * second},
		{"close", func(s *State, id lease.SessionID) { _ = s.Close(3*second, id, "") }, lease.Closed, 3 * second},
		{"close with a reason", func(s *State, id lease.SessionID) { _ = s.Close(3*second, id, lease.Forced) }, lease.Forced, 3 * second},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewState(Options{})
			id := open(t, s, 0, "a")
			before := acquire(t, s, 0, id, "g")[0]
			c.end(s, id)
			after := read(t, s, 30*second, "g")
			want(t, "state", after.State, tenure.Vacant)
			want(t, "version", after.Version, before.Version)
			want(t, "holder", after.Holder, id)
			want(t, "reason", after.Terms[0].Reason, c.reason)
			want(t, "end", after.Terms[0].End, time.Unix(0, int64(c.at)).UTC())
			want(t, "end in the slice handed out before", before.Terms[0].End, time.Time{})

			next := acquire(t, s, 30*second, open(t, s, 30*second, "b"), "g")[0]
			want(t, "reason after the next grant", next.Terms[0].Reason, c.reason)
			want(t, "version of the next grant", next.Version, before.Version+1)
			want(t, "token of the next grant", next.Token, before.Token+1)
			want(t, "end of the next term", next.Terms[1].End, time.Time{})
		})
	}
}

// A release records its reason, keeps the token and names nobody; a transfer
// raises the token and leaves no gap.
func TestRelease(t *testing.T) {
	s := NewState(Options{})
	a, b := open(t, s, 0, "a"), open(t, s, 0, "b")
	held := acquire(t, s, 0, a, "g")[0]
	moved, err := s.Release(1, a, held, b, "")
	if err != nil {
		t.Fatal(err)
	}
	want(t, "holder after the transfer", moved.Holder, b)
	want(t, "token after the transfer", moved.Token, held.Token+1)
	want(t, "reason of the transfer", moved.Terms[0].Reason, lease.Transferred)
	if _, err := s.Release(2, a, held, "", ""); !errors.Is(err, lease.ErrConflict) {
		t.Errorf("a late release answered %v", err)
	}
	free, err := s.Release(3, b, moved, "", lease.SteppedDown)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "holder after the release", free.Holder, "")
	want(t, "token after the release", free.Token, moved.Token)
	want(t, "version after the release", free.Version, moved.Version+1)
	want(t, "reason of the release", free.Terms[1].Reason, lease.SteppedDown)
	want(t, "candidate that led last", free.Candidate.ID, "b")
}

// A record carries its newest terms, and the history reaches back at least as
// far as promised, in pages, newest first, without gaps.
func TestHistoryCap(t *testing.T) {
	const terms = 5*historyKept + 7
	s := NewState(Options{})
	a := open(t, s, 0, "a")
	r := lease.Record{Group: "g"}
	for range terms {
		granted, err := s.Acquire(0, a, r)
		if err != nil {
			t.Fatal(err)
		}
		if r, err = s.Release(0, a, granted[0], "", ""); err != nil {
			t.Fatal(err)
		}
	}
	want(t, "terms in the record", len(r.Terms), lease.TermsKept)
	want(t, "newest term in the record", r.Terms[lease.TermsKept-1].Token, terms)
	if n := cap(s.groups["g"].terms); n > 4*historyKept {
		t.Errorf("room for %d terms is kept", n)
	}
	next, after := fence.Token(terms), ""
	for {
		page, err := s.History(0, "g", lease.Page{After: after, Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, term := range page {
			want(t, "token in the history", term.Token, next)
			next--
		}
		after = page[len(page)-1].Token.String()
	}
	want(t, "terms listed", terms-int(next), historyKept)
}

// A restart of the engine gives every living session its TTL anew and brings no
// dead one back.
func TestRestart(t *testing.T) {
	s := NewState(Options{})
	a := open(t, s, 0, "a")
	b := open(t, s, 5*second, "b")
	s.Restart(11 * second)
	want(t, "next expiry", s.NextExpiry(), 21*second)
	_, err := s.KeepAlive(11*second, a)
	wantErr(t, "keep-alive of the one that had expired", err, lease.ErrSessionDead)
	_, err = s.KeepAlive(20*second, b)
	wantErr(t, "keep-alive of the living one", err, nil)
}

// A state that went back grants nothing until the epoch is raised above every
// epoch it ever had; then no token repeats, and no session id ever does.
func TestRewind(t *testing.T) {
	s := NewState(Options{})
	a := open(t, s, 0, "a")
	held := acquire(t, s, 0, a, "old")[0]
	backup := s.Snapshot()

	if _, err := s.RaiseEpoch(0, 4); err != nil {
		t.Fatal(err)
	}
	b := open(t, s, 0, "b")
	lost := acquire(t, s, 0, b, "new")[0]
	s.Expire(20 * second)
	before, _ := s.Meta(20 * second)
	s.Changed()

	s.Restore(20*second, backup)
	want(t, "changed by the restore", fmt.Sprint(s.Changed()), "[new old]")
	meta, _ := s.Meta(20 * second)
	want(t, "rewound", meta.Rewound, true)
	want(t, "highest index", meta.Index, before.Index)
	want(t, "epoch", meta.Epoch, 0)
	want(t, "version of the lost group", read(t, s, 20*second, "new").Version, 0)
	want(t, "next expiry", s.NextExpiry(), 30*second)

	_, err := s.Open(20*second, tenure.Candidate{ID: "c"}, 10*time.Second, lease.OpenOptions{Scope: lease.Scope{"*"}})
	wantErr(t, "open", err, lease.ErrRewound)
	_, err = s.KeepAlive(20*second, a)
	wantErr(t, "keep-alive", err, lease.ErrRewound)
	_, err = s.Acquire(20*second, a, lease.Record{Group: "new"})
	wantErr(t, "acquire", err, lease.ErrRewound)
	_, err = s.Release(20*second, a, held, b, "")
	wantErr(t, "transfer", err, lease.ErrRewound)
	_, err = s.Release(20*second, a, held, "", "")
	wantErr(t, "plain release", err, nil)
	for i := range uint64(10) { // changes do not wear the flag off
		if _, err := s.SetAttributes(20*second, lease.Attributes{Name: "x", Version: i}); err != nil {
			t.Fatal(err)
		}
	}
	_, err = s.Acquire(20*second, a, lease.Record{Group: "new"})
	wantErr(t, "acquire after more changes", err, lease.ErrRewound)
	s.Restore(20*second, s.Snapshot()) // nor does a restore of what is there
	_, err = s.Acquire(20*second, a, lease.Record{Group: "new"})
	wantErr(t, "acquire after a second restore", err, lease.ErrRewound)

	for _, epoch := range []uint64{0, 1, 4, fence.MaxEpoch + 1} {
		_, err = s.RaiseEpoch(20*second, epoch)
		wantErr(t, fmt.Sprintf("epoch %d", epoch), err, lease.ErrInvalid)
	}
	if _, err = s.RaiseEpoch(20*second, 5); err != nil {
		t.Fatal(err)
	}
	if c := open(t, s, 20*second, "c"); c == b {
		t.Errorf("session id %q was used again", c)
	}
	again := acquire(t, s, 20*second, a, "new")[0]
	if again.Token <= lost.Token {
		t.Errorf("token %d after token %d was lost", again.Token, lost.Token)
	}

	// The raise itself is forgotten by an older backup, and that shows.
	s.Restore(20*second, backup)
	if meta, _ = s.Meta(20 * second); !meta.Rewound {
		t.Error("the second restore was not seen")
	}
	_, err = s.RaiseEpoch(20*second, 5)
	wantErr(t, "an epoch from before the restore", err, lease.ErrInvalid)
}

// After a raise the index goes on above every one that was acknowledged: what is
// backed up from then on is not taken for a step back.
func TestRaiseEndsRewind(t *testing.T) {
	s := NewState(Options{})
	empty := s.Snapshot()
	for range 5 {
		open(t, s, 0, "a")
	}
	s.Restore(0, empty)
	before, _ := s.Meta(0)
	want(t, "rewound before the raise", before.Rewound, true)
	raised, err := s.RaiseEpoch(0, 1)
	wantErr(t, "raise", err, nil)
	if raised.Index <= before.Index {
		t.Errorf("the raise took the index from %d to %d", before.Index, raised.Index)
	}
	s.Restore(0, s.Snapshot())
	after, _ := s.Meta(0)
	want(t, "rewound after a restore of what is there", after.Rewound, false)
}

// A restore of everything that was acknowledged takes nothing back, and the
// backup is not touched by what happens after it.
func TestRestoreOfNow(t *testing.T) {
	s := NewState(Options{})
	a := open(t, s, 0, "a")
	held := acquire(t, s, 0, a, "g", "h")[1]
	backup := s.Snapshot()
	s.Restore(second, backup)
	meta, _ := s.Meta(second)
	want(t, "rewound", meta.Rewound, false)
	if _, err := s.Release(second, a, held, "", ""); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(second, a, ""); err != nil {
		t.Fatal(err)
	}
	s.Restore(2*second, backup)
	want(t, "holder in the backup", read(t, s, 2*second, "h").Holder, a)
	want(t, "state in the backup", read(t, s, 2*second, "h").State, tenure.Led)
	if terms, _ := s.History(2*second, "h", lease.Page{}); len(terms) != 1 || !terms[0].End.IsZero() {
		t.Errorf("the history in the backup is %+v", terms)
	}
	if err := s.Close(2*second, a, ""); err != nil {
		t.Fatal(err)
	}
	want(t, "state after the close", read(t, s, 2*second, "h").State, tenure.Vacant)
}

// Requests wait in order, expire, are bounded, and their answers stay readable
// until the request's time is up, also when the owner has gone.
func TestRequests(t *testing.T) {
	s := NewState(Options{})
	a := open(t, s, 0, "a")
	ask := func(now clock.Instant, id string, ttl time.Duration) error {
		return s.Ask(now, a, lease.Request{ID: id, Verb: lease.StepDown, Group: "g", TTL: ttl})
	}
	beat := func(now clock.Instant) string {
		b, err := s.KeepAlive(now, a)
		if err != nil {
			t.Fatal(err)
		}
		var ids []string
		for _, r := range b.Requests {
			ids = append(ids, r.ID)
		}
		return strings.Join(ids, " ")
	}
	for _, r := range []string{"r2", "r1", "r3", "r1"} {
		wantErr(t, "ask", ask(0, r, time.Duration(5*second)), nil)
	}
	want(t, "requests", beat(1), "r2 r1 r3")
	wantErr(t, "answer", s.Answer(1, a, "r1", lease.Answer{Outcome: lease.Done}), nil)
	wantErr(t, "another answer", s.Answer(1, a, "r1", lease.Answer{Outcome: lease.Refused}), nil)
	want(t, "requests after the answer", beat(2), "r2 r3")
	got, err := s.Answered(2, a, "r1")
	wantErr(t, "answered", err, nil)
	want(t, "the first answer", got.Outcome, lease.Done)
	want(t, "requests after their time", beat(5*second), "")
	_, err = s.Answered(5*second, a, "r1")
	wantErr(t, "an answer after its time", err, lease.ErrNotFound)

	for i := range lease.MaxRequests {
		wantErr(t, "ask", ask(6*second, fmt.Sprint(i), time.Minute), nil)
	}
	wantErr(t, "one more", ask(6*second, "more", time.Minute), lease.ErrBusy)
	wantErr(t, "the same again", ask(6*second, "0", time.Minute), nil)
	wantErr(t, "answer", s.Answer(6*second, a, "0", lease.Answer{Outcome: lease.Refused}), nil)
	wantErr(t, "one more after an answer", ask(6*second, "more", time.Minute), nil)

	if err := s.Close(7*second, a, ""); err != nil {
		t.Fatal(err)
	}
	got, err = s.Answered(8*second, a, "0")
	wantErr(t, "answered by a session that has gone", err, nil)
	want(t, "outcome", got.Outcome, lease.Refused)
	_, err = s.Answered(8*second, a, "1")
	wantErr(t, "not answered by a session that has gone", err, lease.ErrSessionDead)
	_, err = s.Answered(80*second, a, "0")
	wantErr(t, "answered by a session that has gone, too late", err, lease.ErrSessionDead)
}

// The line is ordered by priority and age, pages go on where they ended, and a
// page after a session that has died is refused and not guessed.
func TestLine(t *testing.T) {
	s := NewState(Options{})
	for i, priority := range []int{0, 5, 0, 5, -1} {
		c := tenure.Candidate{ID: "c" + string(rune('0'+i)), Priority: priority}
		if _, err := s.Open(0, c, time.Minute, lease.OpenOptions{Scope: lease.Scope{"g*"}}); err != nil {
			t.Fatal(err)
		}
	}
	open(t, s, 0, "everything")
	if _, err := s.Open(0, tenure.Candidate{ID: "other", Priority: 9}, time.Minute, lease.OpenOptions{Scope: lease.Scope{"h"}}); err != nil {
		t.Fatal(err)
	}
	var order []string
	page := lease.Page{Limit: 2}
	for {
		sessions, err := s.Sessions(0, lease.Scope{"g1"}, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range sessions {
			order = append(order, n.Candidate.ID)
			page.After = string(n.ID)
		}
		if len(sessions) < page.Limit {
			break
		}
	}
	want(t, "line", strings.Join(order, " "), "c1 c3 c0 c2 everything c4")
	_ = s.Close(0, "s1", "")
	_, err := s.Sessions(0, lease.Scope{"*"}, lease.Page{After: "s1"})
	wantErr(t, "a page after a dead session", err, lease.ErrInvalid)
}

// Beats and reads, which are nearly all of a store's work, allocate nothing.
func TestHotPathAllocatesNothing(t *testing.T) {
	s := NewState(Options{})
	id := open(t, s, 0, "a")
	acquire(t, s, 0, id, "g")
	read(t, s, 0, "g")
	var now clock.Instant
	if n := testing.AllocsPerRun(1000, func() {
		now += second / 10
		_, _ = s.KeepAlive(now, id)
		_, _ = s.Read(now, "g")
		_, _ = s.Read(now, "never-granted")
		_ = s.NextExpiry()
		_ = s.Changed()
	}); n != 0 {
		t.Errorf("%v allocations in a beat and two reads", n)
	}
}

// Arguments that break a rule are refused as such and change nothing.
func TestArguments(t *testing.T) {
	s := NewState(Options{})
	a := open(t, s, 0, "a")
	request := lease.Request{ID: "r", Verb: lease.Transfer, Group: "g", To: "b", TTL: time.Second}
	with := func(change func(*lease.Request)) error {
		r := request
		change(&r)
		return s.Ask(0, a, r)
	}
	batch := make([]lease.Record, s.Limits().Batch+1)
	for i := range batch {
		batch[i].Group = fmt.Sprint("g", i)
	}
	second := func(_ any, err error) error { return err }
	scope := lease.Scope{"*"}
	before, _ := s.Meta(0)
	for name, err := range map[string]error{
		"candidate":         second(s.Open(0, tenure.Candidate{ID: "A"}, time.Second, lease.OpenOptions{Scope: scope})),
		"metadata":          second(s.Open(0, tenure.Candidate{ID: "a", Metadata: map[string]string{"k": strings.Repeat("v", lease.MaxMetadata)}}, time.Second, lease.OpenOptions{Scope: scope})),
		"ttl 0":             second(s.Open(0, tenure.Candidate{ID: "a"}, 0, lease.OpenOptions{Scope: scope})),
		"ttl too long":      second(s.Open(0, tenure.Candidate{ID: "a"}, s.Limits().MaxTTL+1, lease.OpenOptions{Scope: scope})),
		"scope":             second(s.Open(0, tenure.Candidate{ID: "a"}, time.Second, lease.OpenOptions{Scope: nil})),
		"no records":        second(s.Acquire(0, a)),
		"too many records":  second(s.Acquire(0, a, batch...)),
		"a group twice":     second(s.Acquire(0, a, batch[0], batch[1], batch[0])),
		"group":             second(s.Acquire(0, a, lease.Record{Group: "-"})),
		"released group":    second(s.Release(0, a, lease.Record{}, "", "")),
		"read group":        second(s.Read(0, "G")),
		"request id":        with(func(r *lease.Request) { r.ID = "" }),
		"long request id":   with(func(r *lease.Request) { r.ID = strings.Repeat("r", 65) }),
		"verb":              with(func(r *lease.Request) { r.Verb = "sing" }),
		"transfer to":       with(func(r *lease.Request) { r.To = "" }),
		"step-down to":      with(func(r *lease.Request) { r.Verb, r.To = lease.StepDown, "?" }),
		"request group":     with(func(r *lease.Request) { r.Group = "" }),
		"request token":     with(func(r *lease.Request) { r.Token = fence.MaxToken + 1 }),
		"request ttl":       with(func(r *lease.Request) { r.TTL = 0 }),
		"long request ttl":  with(func(r *lease.Request) { r.TTL = time.Hour + 1 }),
		"cool-down":         with(func(r *lease.Request) { r.CoolDown = -1 }),
		"long cool-down":    with(func(r *lease.Request) { r.CoolDown = 24*time.Hour + 1 }),
		"request reason":    with(func(r *lease.Request) { r.Reason = strings.Repeat("r", lease.MaxMetadata+1) }),
		"outcome":           s.Answer(0, a, "r", lease.Answer{}),
		"detail":            s.Answer(0, a, "r", lease.Answer{Outcome: lease.Done, Detail: strings.Repeat("d", lease.MaxMetadata+1)}),
		"listed scope":      second(s.Groups(0, nil, lease.Page{})),
		"page limit":        second(s.Groups(0, scope, lease.Page{Limit: lease.MaxPage + 1})),
		"negative limit":    second(s.Sessions(0, scope, lease.Page{Limit: -1})),
		"history group":     second(s.History(0, "", lease.Page{})),
		"history after":     second(s.History(0, "g", lease.Page{After: "x"})),
		"epoch":             second(s.RaiseEpoch(0, 0)),
		"epoch too large":   second(s.RaiseEpoch(0, fence.MaxEpoch+1)),
		"attributes name":   second(s.Attributes(0, "Group")),
		"long name":         second(s.Attributes(0, strings.Repeat("n", 129))),
		"attributes values": second(s.SetAttributes(0, lease.Attributes{Name: "n", Values: map[string]string{"k": strings.Repeat("v", lease.MaxMetadata)}})),
	} {
		var argument *lease.ArgumentError
		if !errors.As(err, &argument) {
			t.Errorf("%s: answered %v, want an ArgumentError", name, err)
		}
	}
	wantErr(t, "the request without a fault", s.Ask(0, a, request), nil)
	after, _ := s.Meta(0)
	want(t, "changes", after.Index-before.Index, 1)
	n, err := s.Open(0, tenure.Candidate{ID: "a"}, 1, lease.OpenOptions{Scope: scope})
	wantErr(t, "open with a short ttl", err, nil)
	want(t, "granted ttl", n.TTL, s.Limits().MinTTL)
}

// Conflicts show exactly the groups that stood in the way, as they are now, and
// a batch with one of them grants nothing.
func TestConflict(t *testing.T) {
	s := NewState(Options{})
	a, b := open(t, s, 0, "a"), open(t, s, 0, "b")
	stale := seen(t, s, 0, "free", "led", "moved")
	acquire(t, s, 0, a, "led", "moved")
	if _, err := s.Release(0, a, read(t, s, 0, "moved").Record, "", ""); err != nil {
		t.Fatal(err)
	}
	_, err := s.Acquire(0, b, stale...)
	var conflict *lease.ConflictError
	if !errors.As(err, &conflict) {
		t.Fatalf("answered %v", err)
	}
	var shown []string
	for _, v := range conflict.Current {
		shown = append(shown, fmt.Sprint(v.Group, " v", v.Version, " ", v.State))
	}
	slices.Sort(shown)
	want(t, "shown", strings.Join(shown, ", "), "led v1 led, moved v2 vacant")
	want(t, "version of the free group", read(t, s, 0, "free").Version, 0)
}

// Attributes change only from the version seen, and the version outlives what
// is removed.
func TestAttributes(t *testing.T) {
	s := NewState(Options{})
	a, err := s.Attributes(0, "group/billing")
	wantErr(t, "read", err, nil)
	want(t, "version", a.Version, 0)
	a.Values = map[string]string{"cordon": "yes", "policy": "strict"}
	one, err := s.SetAttributes(0, a)
	wantErr(t, "first write", err, nil)
	_, err = s.SetAttributes(0, a)
	wantErr(t, "second write from the same version", err, lease.ErrConflict)
	one.Values = map[string]string{"cordon": "", "policy": "lax"}
	two, err := s.SetAttributes(0, one)
	wantErr(t, "removal", err, nil)
	want(t, "values", fmt.Sprint(two.Values), "map[policy:lax]")
	three, err := s.SetAttributes(0, lease.Attributes{Name: a.Name, Version: two.Version})
	wantErr(t, "removal of all", err, nil)
	want(t, "version after all is removed", three.Version, 3)
}
