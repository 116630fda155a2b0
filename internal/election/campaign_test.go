package election

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/machine"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

const (
	billing  = "billing"
	instance = "instance-0123456789"
)

// world is a store, and calls that campaign in it one at a time.
type world struct {
	t     *testing.T
	store *mem.Store
	time  clock.Instant
}

func newWorld(t *testing.T) *world {
	s := mem.New(mem.Options{})
	t.Cleanup(s.Close)
	return &world{t: t, store: s, time: 1}
}

func options() store.OpenOptions {
	return store.OpenOptions{Scope: store.Scope{"*"}, Instance: instance, Attempt: "campaign"}
}

func (w *world) open(node string, o store.OpenOptions) store.Session {
	w.t.Helper()
	s, err := w.store.Open(w.t.Context(), tenure.Candidate{ID: node}, time.Hour, o)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// seize lets a session lead a group.
func (w *world) seize(id store.SessionID, group string) {
	w.t.Helper()
	v, err := w.store.Read(w.t.Context(), group)
	if err == nil {
		_, err = w.store.Acquire(w.t.Context(), id, v.Record)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) lives(id store.SessionID) bool {
	_, err := w.store.Session(w.t.Context(), id)
	return err == nil
}

// driver steps a campaign and makes its calls.
type driver struct {
	*world
	*Campaign
	made []machine.CallKind
	// before happens before a call is made. If it returns an error, that is the answer.
	before func(*machine.Call) error
	// after happens after it was made. If it returns an error, that is the answer.
	after func(*machine.Call) error
}

func (w *world) campaign(cfg Config) *driver {
	if cfg.Groups == nil {
		cfg.Groups = []string{billing}
	}
	cfg.Machine.Candidate, cfg.Machine.Scope = tenure.Candidate{ID: "a"}, store.Scope{"*"}
	cfg.Machine.Timing, cfg.Machine.Attempt, cfg.Machine.Caps = machine.Timing(lease.Timing{TTL: time.Hour}.Resolve()), "campaign", w.store.Caps()
	if cfg.Deadline == 0 {
		cfg.Deadline = w.time.Add(time.Minute)
	}
	return &driver{world: w, Campaign: New(cfg)}
}

// steps goes on until the campaign is over, or is idle before the given time.
func (d *driver) steps(until clock.Instant, events ...machine.Event) (Outcome, bool) {
	d.t.Helper()
	for range 1000 {
		actions := append([]machine.Action(nil), d.Step(d.time, events...)...)
		events = nil
		for _, a := range actions {
			switch a.Kind {
			case machine.DoCall:
				events = append(events, machine.Event{Kind: machine.OnReply, Reply: d.call(a.Call)})
			case machine.DoWatch:
				for _, g := range d.cfg.Groups {
					v, err := d.store.Read(d.t.Context(), g)
					if err != nil {
						d.t.Fatal(err)
					}
					events = append(events, machine.Event{Kind: machine.OnView, View: &v})
				}
				events = append(events, machine.Event{Kind: machine.OnView, View: &store.View{}})
			default:
			}
		}
		if len(events) > 0 {
			continue
		}
		if out, done := d.Done(); done {
			return out, true
		}
		if d.Next() > until {
			d.time = until
			return Outcome{}, false
		}
		d.time = max(d.time, d.Next())
	}
	d.t.Fatal("it does not end")
	return Outcome{}, false
}

func (d *driver) run(events ...machine.Event) Outcome {
	d.t.Helper()
	out, _ := d.steps(clock.Never-1, events...)
	return out
}

func (d *driver) call(c *machine.Call) *machine.Reply {
	d.made = append(d.made, c.Kind)
	if d.before != nil {
		if err := d.before(c); err != nil {
			return &machine.Reply{ID: c.ID, Err: err}
		}
	}
	r := c.Do(context.Background(), d.store, tenure.Candidate{ID: "a"}, options())
	if d.after != nil {
		if err := d.after(c); err != nil {
			return &machine.Reply{ID: c.ID, Err: err}
		}
	}
	return r
}

func left() machine.Event { return machine.Event{Kind: OnGone, Cause: context.Canceled} }

var errLost = errors.New("no answer")

// A vacant group is led with two calls, and the session stays open for the client.
func TestVacant(t *testing.T) {
	d := newWorld(t).campaign(Config{})
	out := d.run()
	if out.Led[billing].Token != 1 || out.Err != nil || !d.lives(out.Session.ID) || len(d.made) != 2 {
		t.Errorf("%+v with %v", out, d.made)
	}
}

// A call that is repeated has the same answer, and the term goes on.
func TestRepeated(t *testing.T) {
	w := newWorld(t)
	first := w.campaign(Config{Retriable: true}).run()
	for _, wait := range []bool{false, true} {
		again := w.campaign(Config{Retriable: true, Wait: wait}).run()
		if again.Led[billing].Token != 1 || again.Session.ID != first.Session.ID {
			t.Errorf("%+v, and again %+v", first, again)
		}
	}
}

// A campaign that ends without a term closes its session: at the deadline, when the client
// goes away, and when another was faster.
func TestNotElected(t *testing.T) {
	w := newWorld(t)
	w.seize(w.open("b", store.OpenOptions{Scope: store.Scope{"*"}}).ID, billing)
	for name, tt := range map[string]struct {
		wait, gone bool
	}{"deadline": {wait: true}, "gone": {wait: true, gone: true}, "at once": {}} {
		for _, retriable := range []bool{false, true} {
			d := w.campaign(Config{Wait: tt.wait, Retriable: retriable, Deadline: w.time.Add(time.Minute)})
			out, over := d.steps(d.time + 1)
			if over == tt.wait {
				t.Fatalf("%s: over: %v", name, over)
			}
			if tt.gone {
				out = d.run(left())
			} else if tt.wait {
				out = d.run()
			}
			if len(out.Led) > 0 || out.Session.ID == "" || d.lives(out.Session.ID) || out.Views[billing].Candidate.ID != "b" || (out.Err != nil) != tt.gone {
				t.Errorf("%s, retriable %v: %+v", name, retriable, out)
			}
		}
	}
}

// While the session is being closed, a retry at another instance of the service comes to lead
// with it. If the client chose the instance the session is left alone; a client that waits is
// told of the term. Otherwise nobody can know of the term, and it ends.
func TestAbandonRaces(t *testing.T) {
	for _, gone := range []bool{false, true} {
		for _, retriable := range []bool{false, true} {
			w := newWorld(t)
			b := w.open("b", store.OpenOptions{Scope: store.Scope{"*"}})
			w.seize(b.ID, billing)
			d := w.campaign(Config{Wait: true, Retriable: retriable})
			d.before = func(c *machine.Call) error {
				if c.Kind == machine.CallClose && w.lives(b.ID) {
					if err := w.store.End(t.Context(), b.ID, store.Closed); err != nil {
						t.Fatal(err)
					}
					w.seize(c.Session, billing)
				}
				return nil
			}
			d.steps(d.time + 1)
			var out Outcome
			if gone {
				out = d.run(left())
			} else {
				out = d.run()
			}
			if stays := !gone || retriable; d.lives(out.Session.ID) != stays {
				t.Errorf("gone %v, retriable %v: the session lives: %v", gone, retriable, !stays)
			}
			if told := out.Led[billing].Token == 2; told == gone {
				t.Errorf("gone %v, retriable %v: %+v", gone, retriable, out)
			}
		}
	}
}

// A try whose answer is lost when the time is up is resolved by the close: it has succeeded,
// and the client is told, or it never will.
func TestLostWin(t *testing.T) {
	for _, effect := range []bool{true, false} {
		w := newWorld(t)
		d := w.campaign(Config{Retriable: true})
		lose := func(c *machine.Call) error {
			if c.Kind == machine.CallAcquire {
				d.time = d.cfg.Deadline
				return errLost
			}
			return nil
		}
		if effect {
			d.after = lose
		} else {
			d.before = lose
		}
		out := d.run()
		if _, led := out.Led[billing]; led != effect || d.lives(out.Session.ID) != effect || !effect && out.Err == nil {
			t.Errorf("effect %v: %+v", effect, out)
		}
	}
}

// A client that goes away while its session is being opened leaves no candidate behind.
func TestGoneWhileOpening(t *testing.T) {
	d := newWorld(t).campaign(Config{})
	var open *machine.Call
	for _, a := range d.Step(d.time) {
		if a.Kind == machine.DoCall && a.Call.Kind == machine.CallOpen {
			open = a.Call
		}
	}
	d.Step(d.time, left())
	if _, over := d.Done(); over || open == nil {
		t.Fatal("it did not wait for the session")
	}
	out := d.run(machine.Event{Kind: machine.OnReply, Reply: d.call(open)})
	if out.Session.ID == "" || d.lives(out.Session.ID) {
		t.Errorf("%+v", out)
	}
}

// A client that is gone when its campaign is won gets no term that nobody knows of, unless it
// can ask again.
func TestGoneWhenWon(t *testing.T) {
	for _, retriable := range []bool{false, true} {
		d := newWorld(t).campaign(Config{Retriable: retriable})
		d.run()
		if out := d.run(left()); d.lives(out.Session.ID) != retriable {
			t.Errorf("retriable %v: %+v", retriable, out)
		}
	}
}

// A session that is the client's is never closed, nor opened again when it is dead.
func TestLent(t *testing.T) {
	w := newWorld(t)
	b := w.open("b", store.OpenOptions{Scope: store.Scope{"*"}})
	w.seize(b.ID, billing)
	a := w.open("a", options())
	lent := machine.Config{Session: &a, Sent: w.time, Lent: true}
	for _, event := range [][]machine.Event{nil, {left()}} {
		d := w.campaign(Config{Machine: lent, Wait: true})
		d.steps(d.time + 1)
		if out := d.run(event...); len(out.Led) > 0 || len(d.made) > 0 || !w.lives(a.ID) {
			t.Errorf("%+v with %v", out, d.made)
		}
	}
	if err := w.store.End(t.Context(), a.ID, store.Closed); err != nil {
		t.Fatal(err)
	}
	d := w.campaign(Config{Machine: lent, Groups: []string{"vacant"}})
	if out := d.run(); !errors.Is(out.Failed["vacant"], store.ErrSessionDead) || len(d.made) != 1 {
		t.Errorf("in a dead session: %+v with %v", out, d.made)
	}
}

// Of many groups the vacant ones are led, who leads the others is told, and so is what nobody
// knows yet.
func TestMany(t *testing.T) {
	w := newWorld(t)
	b := w.open("b", store.OpenOptions{Scope: store.Scope{"*"}})
	w.seize(b.ID, "taken")
	a := w.open("a", options())
	w.seize(a.ID, "held")
	lent := machine.Config{Session: &a, Sent: w.time, Lent: true}
	d := w.campaign(Config{Machine: lent, Groups: []string{"taken", "held", "vacant", "late"}})
	d.before = func(c *machine.Call) error {
		// Somebody is faster.
		if v, err := w.store.Read(t.Context(), "late"); c.Kind == machine.CallAcquire && err == nil && v.Version == 0 {
			w.seize(b.ID, "late")
		}
		return nil
	}
	out := d.run()
	if len(out.Led) != 2 || out.Led["held"].Token != 1 || out.Led["vacant"].Token != 1 || out.Views["taken"].Holder != b.ID || out.Views["late"].Holder != b.ID || out.Err != nil {
		t.Errorf("%+v", out)
	}
	d = w.campaign(Config{Machine: lent, Groups: []string{"held", "unsure"}})
	d.before = func(c *machine.Call) error {
		if c.Kind == machine.CallAcquire {
			return errLost
		}
		return nil
	}
	if out := d.run(); len(out.Led) != 1 || !out.Unsure["unsure"] || len(d.made) != 1+tries {
		t.Errorf("%+v with %v", out, d.made)
	}
}

// What definitely cannot be is not tried again.
func TestRefused(t *testing.T) {
	for kind, err := range map[machine.CallKind]error{machine.CallOpen: store.ErrRewound, machine.CallAcquire: &store.BarError{Code: "cordoned", Detail: "no"}} {
		d := newWorld(t).campaign(Config{Wait: true})
		d.before = func(c *machine.Call) error {
			if c.Kind == kind {
				return err
			}
			return nil
		}
		out := d.run()
		if got := errors.Join(out.Err, out.Failed[billing]); !errors.Is(got, err) || d.time != 1 || d.lives(out.Session.ID) {
			t.Errorf("%v: %+v", kind, out)
		}
	}
}

// Calls that are never answered hold nothing up for longer than their time, and a beat that is
// acknowledged counts from its sending.
func TestSilence(t *testing.T) {
	w := newWorld(t)
	w.seize(w.open("b", store.OpenOptions{Scope: store.Scope{"*"}}).ID, billing)
	d := w.campaign(Config{Wait: true, Deadline: clock.Never - 1})
	d.cfg.Deadline = w.time.Add(20 * time.Minute)
	d.after = func(c *machine.Call) error {
		if c.Kind == machine.CallBeat {
			d.time = d.time.Add(time.Second) // its answer takes that long
		}
		return nil
	}
	d.steps(w.time.Add(16 * time.Minute)) // a beat is TTL/4
	if got := d.outcome.Sent; got != 1+clock.Instant(15*time.Minute) {
		t.Errorf("the last beat counts from %v", got)
	}
	for i, a := range d.Step(d.cfg.Deadline) {
		if i > 0 || a.Call.Kind != machine.CallClose {
			t.Fatalf("%+v", a)
		}
	}
	for range 10 {
		if _, over := d.Done(); over {
			return
		}
		d.Step(d.Next())
	}
	t.Error("it waits for ever")
}

// A campaign that could not close its session is not told that it leads because another
// process with its node id does.
func TestAdoptNobody(t *testing.T) {
	w := newWorld(t)
	b := w.open("b", store.OpenOptions{Scope: store.Scope{"*"}})
	w.seize(b.ID, billing)
	d := w.campaign(Config{Wait: true, Retriable: true})
	d.before = func(c *machine.Call) error {
		if c.Kind == machine.CallClose && w.lives(b.ID) {
			if err := w.store.End(t.Context(), b.ID, store.Closed); err != nil {
				t.Fatal(err)
			}
			w.seize(w.open("a", store.OpenOptions{Scope: store.Scope{"*"}}).ID, billing)
		}
		return nil
	}
	if out := d.run(); len(out.Led) > 0 || d.lives(out.Session.ID) {
		t.Errorf("%+v", out)
	}
}

// A call that stood still for longer than its session lasts gives the session up. It does not
// close it if a retry elsewhere leads with it by now, whether the watch has shown that or not.
func TestStaleWaiter(t *testing.T) {
	for _, shown := range []bool{false, true} {
		w := newWorld(t)
		b := w.open("b", store.OpenOptions{Scope: store.Scope{"*"}})
		w.seize(b.ID, billing)
		d := w.campaign(Config{Wait: true, Retriable: true, Deadline: clock.Instant(3 * time.Hour)})
		d.steps(w.time.Add(time.Minute))
		if err := w.store.End(t.Context(), b.ID, store.Closed); err != nil {
			t.Fatal(err)
		}
		retry := w.open("a", options())
		w.seize(retry.ID, billing)
		w.time = w.time.Add(2 * time.Hour)
		var events []machine.Event
		if shown {
			v, err := w.store.Read(t.Context(), billing)
			if err != nil {
				t.Fatal(err)
			}
			events = append(events, machine.Event{Kind: machine.OnView, View: &v})
		}
		d.steps(w.time, events...)
		if v, err := w.store.Read(t.Context(), billing); err != nil || v.State != tenure.Led || v.Holder != retry.ID {
			t.Errorf("shown %v: %+v, %v after %v", shown, v, err, d.made)
		}
	}
}

// What a call was held for counts less than it took, and a lease that began before the call
// arrived counts nothing.
func TestHeld(t *testing.T) {
	out := Outcome{Sent: clock.Instant(10 * time.Second)}
	if got := out.Held(0, 0.02); got != 9800*time.Millisecond {
		t.Errorf("held for %v", got)
	}
	if got := out.Held(clock.Instant(11*time.Second), 0.02); got != 0 {
		t.Errorf("held for %v", got)
	}
}

// A campaign that wins after a wait renews the session before it answers, so its client begins
// with a whole lease. If the session has died, nothing was won. If there is no answer, the client
// has what is left.
func TestWinAfterWaiting(t *testing.T) {
	for _, c := range []struct {
		name   string
		fail   error
		led    bool
		renews bool
	}{
		{"answered", nil, true, true},
		{"dead", store.ErrSessionDead, false, false},
		{"unanswered", errors.New("no answer"), true, false},
	} {
		w := newWorld(t)
		b := w.open("b", store.OpenOptions{Scope: store.Scope{"*"}})
		w.seize(b.ID, billing)
		d := w.campaign(Config{Wait: true, Deadline: w.time.Add(time.Hour)})
		d.steps(d.time.Add(d.cfg.Machine.Timing.Beat * 3 / 4))
		if err := w.store.End(t.Context(), b.ID, store.Closed); err != nil {
			t.Fatal(err)
		}
		v, err := w.store.Read(t.Context(), billing)
		if err != nil {
			t.Fatal(err)
		}
		beats := 0
		d.before = func(call *machine.Call) error {
			if call.Kind != machine.CallBeat {
				return nil
			}
			beats++
			return c.fail
		}
		out := d.run(machine.Event{Kind: machine.OnView, View: &v})
		if led := len(out.Led) == 1; led != c.led || (out.Sent == d.time) != c.renews || beats != 1 {
			t.Errorf("%s: %+v at %v after %d keep-alives", c.name, out, d.time, beats)
		}
	}
}

// A call that is refused gives nothing back that another call with the same session has won.
func TestRefusedBesideAWin(t *testing.T) {
	w := newWorld(t)
	a := w.open("a", store.OpenOptions{Scope: store.Scope{"*"}, Instance: instance})
	d := w.campaign(Config{Machine: machine.Config{Session: &a, Sent: w.time, Lent: true}, Wait: true})
	var try *machine.Call
	d.before = func(c *machine.Call) error {
		if c.Kind == machine.CallAcquire {
			try = c
			return errLost // answered below
		}
		return nil
	}
	watch := d.Step(d.time)
	if len(watch) == 0 {
		t.Fatal("no watch")
	}
	read := func() store.View {
		v, err := w.store.Read(t.Context(), billing)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	vacant := read()
	for _, act := range d.Step(d.time, machine.Event{Kind: machine.OnView, View: &vacant}, machine.Event{Kind: machine.OnView, View: &store.View{}}) {
		if act.Kind == machine.DoCall {
			_ = d.call(act.Call)
		}
	}
	if try == nil {
		t.Fatal("nothing was tried")
	}
	w.seize(a.ID, billing)
	led := read()
	bar := &store.BarError{Code: "cordoned", Detail: "no"}
	for _, act := range d.Step(d.time, machine.Event{Kind: machine.OnView, View: &led}, machine.Event{Kind: machine.OnReply, Reply: &machine.Reply{ID: try.ID, Err: bar}}) {
		if act.Kind == machine.DoCall && act.Call.Kind != machine.CallRead {
			t.Errorf("it sends a %v", act.Call.Kind)
		}
	}
}
