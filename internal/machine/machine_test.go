package machine

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store"
)

// Whatever is said to the machine, in whatever order, M1 to M4 hold after each
// step, and it asks for nothing that it may not ask for. As long as the store
// keeps its promises, however late and in whatever order its answers come, the
// machine also never stands still while there is something to do, and when
// everything is said it leads what it wants and holds nothing else. A failure
// prints the conversation: make it a file in testdata.
func FuzzMachine(f *testing.F) {
	for seed := range uint64(talks) {
		f.Add(randomTalk(seed))
	}
	f.Fuzz(func(t *testing.T, talk []byte) {
		h := newHeckler(talk, plant.Set{})
		if err := h.run(); err != nil {
			t.Fatalf("%v, after\n%s", err, h.said.String())
		}
	})
}

// Equal seeds and equal events give equal actions: else no failing seed of the
// simulator would fail again.
func TestMachineRepeats(t *testing.T) {
	for seed := range uint64(20) {
		talk := randomTalk(seed)
		one, two := newHeckler(talk, plant.Set{}), newHeckler(talk, plant.Set{})
		_, _ = one.run(), two.run()
		if one.said.String() != two.said.String() {
			t.Fatalf("seed %d: %s", seed, firstDifference(two.said.String(), one.said.String()))
		}
	}
}

// The invariants can fail: the talks that FuzzMachine begins with notice every
// bug that can be planted in the machine, but for the herd, which breaks none.
func TestTalksNoticePlantedBugs(t *testing.T) {
	if !plant.Enabled {
		t.Skip("nothing can be planted in this build")
	}
	for bug := plant.TrustFromReply; bug < plant.Herd; bug++ {
		t.Run(bug.String(), func(t *testing.T) {
			for seed := range uint64(talks) {
				if err := newHeckler(randomTalk(seed), plant.Of(bug)).run(); err != nil {
					t.Logf("talk %d: %v", seed, err)
					return
				}
			}
			t.Error("not noticed")
		})
	}
}

// talks is how many random ones every test run has.
const talks = 200

func randomTalk(seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	talk := make([]byte, 100+r.IntN(1000))
	for i := range talk {
		talk[i] = byte(r.Uint32())
	}
	return talk
}

// heckler talks to a machine, and plays the store for it: bytes choose what it
// says, and when.
type heckler struct {
	talk []byte
	cfg  Config
	m    *Machine
	now  clock.Instant
	said strings.Builder // a conversation, as in testdata
	err  error

	// The store. A rude one shows what was for what is.
	rude    bool
	records map[string][]store.Record // by version
	epoch   fence.Token
	rewound bool
	dead    map[store.SessionID]bool
	opened  int
	others  int
	watched map[string]uint64 // from which version on this watch shows a group
	shown   map[string]bool   // by this watch
	watches bool

	calls    []*asked // under way, or given up
	answered []*Reply
	acked    clock.Instant // when what is being acknowledged was sent; negative: nothing is
	lastID   uint64
	granted  time.Duration // by the newest acknowledgement
	trusted  store.SessionID
	until    clock.Instant
	wants    map[string]bool
	begun    map[string]fence.Token
	terms    []*played
	stopping bool
	stopped  bool
}

// asked is a call, and its answer once the store has served it.
type asked struct {
	*Call
	sent  clock.Instant
	reply *Reply
	words string
}

// played is a term as its holder sees it.
type played struct {
	group    string
	token    fence.Token
	session  store.SessionID
	ended    bool
	returned bool
}

func newHeckler(talk []byte, bugs plant.Set) *heckler {
	h := &heckler{
		talk:    talk,
		cfg:     Config{Timing: defaults(), Candidate: tenure.Candidate{ID: "a"}, Scope: store.Scope{"*"}, Caps: store.Caps{Batch: 2}, Seed: 1, Plant: bugs},
		records: map[string][]store.Record{},
		dead:    map[store.SessionID]bool{},
		others:  1,
		acked:   -1,
		watched: map[string]uint64{},
		shown:   map[string]bool{},
		wants:   map[string]bool{},
		begun:   map[string]fence.Token{},
	}
	for _, g := range h.groups() {
		h.records[g] = []store.Record{{Group: g}}
	}
	h.line("batch 2")
	how := h.next()
	if how&1 != 0 {
		h.cfg.Timing = wan()
		h.line("timing wan")
	}
	if how&2 != 0 {
		h.cfg.Timing.Grace = time.Second
		h.line("timing grace 1s")
	}
	h.rude = how&12 == 0
	h.cfg.Line = h
	h.m = New(h.cfg)
	return h
}

func (h *heckler) groups() []string { return []string{"g", "h", "i"} }

func (h *heckler) next() byte {
	if len(h.talk) == 0 {
		return 0
	}
	b := h.talk[0]
	h.talk = h.talk[1:]
	return b
}

// pick chooses one of n.
func (h *heckler) pick(n int) int { return int(h.next()) % n }

func (h *heckler) group() string { return h.groups()[h.pick(3)] }

func (h *heckler) line(format string, args ...any) { fmt.Fprintf(&h.said, format+"\n", args...) }

func (h *heckler) broken(format string, args ...any) {
	if h.err == nil {
		h.err = fmt.Errorf(format, args...)
	}
}

// run says everything. Much of what is said is an answer as it should be:
// otherwise no conversation would get anywhere.
func (h *heckler) run() error {
	for len(h.talk) > 0 && h.err == nil && !h.stopped {
		switch b := h.next(); {
		case b < 90:
			h.answer(0, 0)
		case b < 110:
			h.pass(time.Duration(h.next()) * 10 * time.Millisecond)
		case b < 114:
			h.still(time.Duration(h.next()) * 50 * time.Millisecond)
		case b < 130:
			h.answer(h.pick(max(1, len(h.calls))), h.pick(8))
		case b < 146:
			h.serve(h.pick(max(1, len(h.calls))), h.pick(8))
		case b < 162:
			h.campaign(h.group())
		case b < 166:
			g := h.group()
			h.wants[g] = false
			h.say("withdraw "+g, Event{Kind: OnWithdraw, Group: g})
		case b < 190:
			h.view(h.group(), uint64(h.pick(4)))
		case b < 202:
			h.synced()
		case b < 205:
			h.lose()
		case b < 230:
			h.stir(h.group(), h.pick(16))
		case b < 245:
			h.work(h.pick(4))
		case b < 249:
			h.health(h.pick(2) == 0)
		case b < 254:
			h.repeat(h.pick(8))
		default:
			if h.pick(8) == 0 {
				h.stopping = true
				clear(h.wants)
				h.say("shutdown", Event{Kind: OnShutdown})
			}
		}
	}
	if h.err == nil && !h.stopping {
		h.settle()
	}
	return h.err
}

// settle is the end of every story: the store answers, at once and well, all
// others are gone, work returns when it should. Then everything that was wanted
// is led, and nothing else is held.
func (h *heckler) settle() {
	h.line("# everything is well from here")
	h.talk = nil
	if h.rude {
		h.rude = false
		h.lose()
	}
	h.health(true)
	h.raise()
	h.dead[h.other()] = true
	for range 150 {
		for i := 0; i < 50 && len(h.calls) > 0; i++ {
			h.answer(0, 0)
		}
		for i := range h.opened {
			if id := store.SessionID(fmt.Sprintf("a%d", i+1)); h.m.session != nil && id != h.m.session.ID {
				h.dead[id] = true
			}
		}
		for _, t := range slices.Clone(h.terms) {
			if t.ended && !t.returned {
				t.returned = true
				h.say(fmt.Sprintf("returned %s %d", t.group, t.token), Event{Kind: OnReturned, Group: t.group, Token: t.token})
			}
		}
		if h.watches {
			h.synced()
		}
		h.pass(200 * time.Millisecond)
		if h.err != nil {
			return
		}
	}
	for _, g := range h.groups() {
		r := h.newest(g)
		leads := slices.ContainsFunc(h.terms, func(t *played) bool { return t.group == g && t.token == r.Token && !t.ended })
		switch held := h.m.session != nil && r.Holder == h.m.session.ID && !h.dead[r.Holder]; {
		case h.wants[g]:
			h.broken("%s is wanted, and not led in the end", g)
		case held && !leads:
			h.broken("M5: %s is held in the end, and neither led nor released", g)
		}
	}
}

// pass lets time pass for a process that runs.
func (h *heckler) pass(d time.Duration) {
	until := h.now.Add(d)
	h.line("+%v", d)
	for h.err == nil {
		next := max(h.m.Next(), h.now)
		if next > until {
			break
		}
		h.now = next
		h.step()
	}
	h.now = until
}

// still lets it pass for one that stands still.
func (h *heckler) still(d time.Duration) {
	h.line("still %v", d)
	h.now = h.now.Add(d)
	h.line("+0s")
	h.step()
}

func (h *heckler) say(words string, e Event) {
	h.line("%s", words)
	h.step(e)
}

func (h *heckler) campaign(g string) {
	// While work of an earlier term runs, a campaign is refused.
	if !h.stopping && !slices.ContainsFunc(h.terms, func(t *played) bool { return t.group == g && !(t.ended && t.returned) }) {
		h.wants[g] = true
	}
	h.say("campaign "+g, Event{Kind: OnCampaign, Group: g})
}

// work ends terms from the holder's side, and lets work return.
func (h *heckler) work(how int) {
	if len(h.terms) == 0 {
		g := h.group()
		h.say("returned "+g+" 99", Event{Kind: OnReturned, Group: g, Token: 99})
		return
	}
	t := h.terms[h.pick(len(h.terms))]
	switch how {
	case 0:
		t.ended = true
		h.say(fmt.Sprintf("ended %s %d transferred", t.group, t.token), Event{Kind: OnEnded, Group: t.group, Token: t.token, Cause: tenure.ErrTransferred})
	case 1:
		t.ended, t.returned = true, true
		h.say(fmt.Sprintf("returned %s %d to b", t.group, t.token), Event{Kind: OnReturned, Group: t.group, Token: t.token, To: "b"})
	case 2:
		h.say(fmt.Sprintf("ended %s 99 resigned", t.group), Event{Kind: OnEnded, Group: t.group, Token: 99, Cause: tenure.ErrResigned})
	default:
		t.ended, t.returned = true, true
		h.say(fmt.Sprintf("returned %s %d", t.group, t.token), Event{Kind: OnReturned, Group: t.group, Token: t.token})
	}
}

func (h *heckler) health(well bool) {
	if well {
		h.say("health ok", Event{Kind: OnHealth})
	} else {
		h.say("health sick", Event{Kind: OnHealth, Cause: errors.New("sick")})
	}
}

// living is who stands in line.
func (h *heckler) living() *lineOf {
	words := []string{string(h.other())}
	for i := range h.opened {
		words = append(words, fmt.Sprintf("a%d", i+1))
	}
	l := lineOf(sessionsOf(slices.DeleteFunc(words, func(id string) bool { return h.dead[store.SessionID(id)] })))
	return &l
}

// The heckler is its own line.
func (h *heckler) Len() int { return h.living().Len() }
func (h *heckler) Ahead(s store.Session, group string, last store.SessionID) int {
	return h.living().Ahead(s, group, last)
}
func (h *heckler) First(group string, but store.SessionID) (store.SessionID, bool) {
	return h.living().First(group, but)
}
func (h *heckler) Newest(group, candidate string, but store.SessionID) (store.SessionID, bool) {
	return h.living().Newest(group, candidate, but)
}

// other is the session of the other candidate.
func (h *heckler) other() store.SessionID { return store.SessionID(fmt.Sprintf("b%d", h.others)) }

func (h *heckler) newest(g string) store.Record { return h.records[g][len(h.records[g])-1] }

// put writes the next version of a record.
func (h *heckler) put(g string, holder store.SessionID) store.Record {
	r := h.newest(g)
	r.Version++
	if holder != "" {
		r.Token = max(r.Token, h.epoch) + 1
	}
	r.Holder = holder
	r.Candidate = sessionOf(string(holder)).Candidate
	h.records[g] = append(h.records[g], r)
	return r
}

// stir lets others do something at the store.
func (h *heckler) stir(g string, how int) {
	r := h.newest(g)
	living := r.Holder != "" && !h.dead[r.Holder]
	switch {
	case how < 6 && !living && !h.rewound:
		h.put(g, h.other())
	case how < 9 && r.Holder == h.other():
		h.put(g, "")
	case how < 12 && r.Holder == h.other() && !h.rewound && h.m.session != nil && !h.dead[h.m.session.ID]:
		h.put(g, h.m.session.ID) // handed to us
	case how == 12:
		h.dead[h.other()] = true
		h.others++
	case how == 13 && h.m.session != nil:
		h.dead[h.m.session.ID] = true // closed by force
	case how == 14 && r.Version > 0 && !h.rewound:
		h.rewound = true
		h.records[g] = h.records[g][:1+h.pick(int(r.Version))]
		for _, c := range h.calls {
			if c.reply != nil { // no answer survives that
				c.reply, c.words = &Reply{ID: c.ID, Err: errReset}, "lost"
			}
		}
		h.lose()
	case how == 15:
		h.raise()
	}
}

// raise raises the epoch of a store that was rewound: every session of before is
// dead by then.
func (h *heckler) raise() {
	if !h.rewound {
		return
	}
	h.rewound = false
	h.epoch += 1000
	h.dead[h.other()] = true
	h.others++
	for i := range h.opened {
		h.dead[store.SessionID(fmt.Sprintf("a%d", i+1))] = true
	}
}

// view shows a record as it is, or as it was since the watch had it last.
func (h *heckler) view(g string, back uint64) {
	if !h.watches {
		return
	}
	least := h.watched[g]
	if h.rude {
		least = 0
	}
	newest := h.newest(g).Version
	v := h.at(g, max(least, newest-min(back, newest)))
	if v.Version == 0 && !h.rude {
		return // no record
	}
	h.watched[g], h.shown[g] = v.Version, true
	h.say("view "+inWords(v), Event{Kind: OnView, View: &v})
}

// lose interrupts the watch.
func (h *heckler) lose() {
	h.watches = false
	h.say("watch lost", Event{Kind: OnWatchLost, Cause: errReset})
}

// synced completes the snapshot.
func (h *heckler) synced() {
	if !h.watches {
		return
	}
	for _, g := range h.groups() {
		if !h.rude && (!h.shown[g] || len(h.talk) == 0) {
			h.view(g, 0)
		}
	}
	h.say("synced", Event{Kind: OnView, View: &store.View{}})
}

// at is what a reader sees of a version.
func (h *heckler) at(g string, version uint64) store.View {
	v := store.View{Record: h.records[g][version], State: tenure.Vacant}
	if v.Holder != "" && !h.dead[v.Holder] {
		v.State = tenure.Led
	}
	return v
}

func inWords(v store.View) string {
	s := fmt.Sprintf("%s v%d ", v.Group, v.Version)
	switch {
	case v.State == tenure.Led:
		return s + fmt.Sprintf("led by %s token %d", v.Holder, v.Token)
	case v.Holder != "":
		return s + fmt.Sprintf("vacant token %d after %s", v.Token, v.Holder)
	default:
		return s + fmt.Sprintf("vacant token %d", v.Token)
	}
}

// serve lets the store do what a call asks. The answer is on its way.
func (h *heckler) serve(which, how int) {
	if which >= len(h.calls) || h.calls[which].reply != nil {
		return
	}
	c := h.calls[which]
	c.reply = &Reply{ID: c.ID}
	switch {
	case how == 4:
		c.reply.Err, c.words = store.ErrBusy, "busy"
	case h.rewound && (c.Kind == CallOpen || c.Kind == CallBeat || c.Kind == CallAcquire || c.To != ""):
		c.reply.Err, c.words = store.ErrRewound, "rewound"
	case h.dead[c.Session] && c.Kind != CallClose:
		c.reply.Err, c.words = store.ErrSessionDead, "dead"
	default:
		c.words = h.does(c.Call, c.reply, how)
	}
}

// answer brings the machine an answer: how 0 is as it should be.
func (h *heckler) answer(which, how int) {
	if which >= len(h.calls) {
		return
	}
	if how != 2 { // never served
		h.serve(which, how)
	}
	c := h.calls[which]
	h.calls = slices.Delete(h.calls, which, which+1)
	if how == 1 || how == 2 {
		c.reply, c.words = &Reply{ID: c.ID, Err: errReset}, "lost"
	}
	h.answered = append(h.answered, c.reply)
	if c.reply.Err == nil && (c.Kind == CallOpen || c.Kind == CallBeat) {
		h.acked = c.sent
		h.granted = max(c.reply.Session.TTL, c.reply.Beat.TTL)
	}
	h.say(fmt.Sprintf("reply %d %s", c.ID, c.words), Event{Kind: OnReply, Reply: c.reply})
	h.acked = -1
	if c.Kind == CallBeat && errors.Is(c.reply.Err, store.ErrSessionDead) {
		for _, t := range h.terms {
			if t.session == c.Session && !t.ended {
				h.broken("the term of %s goes on though its session is dead", t.group)
			}
		}
	}
}

// does is the store. It returns in words what it answers.
func (h *heckler) does(c *Call, r *Reply, how int) string {
	switch c.Kind {
	case CallOpen:
		h.opened++
		r.Session = sessionOf(fmt.Sprintf("a%d", h.opened))
		r.Session.TTL = c.TTL
		return "opened " + string(r.Session.ID)
	case CallBeat:
		r.Beat.TTL = h.cfg.Timing.TTL
		if how%4 == 3 {
			r.Beat.TTL -= r.Beat.TTL / 8
		}
		for _, g := range c.Groups {
			r.Beat.Records = append(r.Beat.Records, h.newest(g))
		}
		return h.asks(r, how)
	case CallClose:
		h.dead[c.Session] = true
		return "ok"
	case CallAcquire:
		return h.grant(c, r, how)
	case CallRelease:
		return h.release(c, r)
	case CallSessions:
		r.Sessions = *h.living()
		if how > 4 {
			slices.Reverse(r.Sessions)
		}
		var words []string
		for _, s := range r.Sessions {
			words = append(words, string(s.ID))
		}
		return "sessions " + strings.Join(words, " ")
	case CallRead:
		r.View = h.at(c.Group, h.newest(c.Group).Version)
		return "read " + inWords(r.View)
	default:
		return "ok"
	}
}

// asks lets an operator ask something with a beat.
func (h *heckler) asks(r *Reply, how int) string {
	if how < 5 {
		return "beat"
	}
	q := store.Request{ID: fmt.Sprintf("r%d", h.pick(4)), Verb: store.StepDown, Group: h.group(), Reason: "for a test", CoolDown: time.Second}
	words := fmt.Sprintf("beat asked %s step-down %s cool-down 1s", q.ID, q.Group)
	if how == 5 {
		q.Verb, q.To, q.CoolDown = store.Transfer, "b", 0
		words = fmt.Sprintf("beat asked %s transfer %s to b", q.ID, q.Group)
	}
	r.Beat.Requests = []store.Request{q}
	return words
}

func (h *heckler) grant(c *Call, r *Reply, how int) string {
	conflict := &store.ConflictError{}
	var words []string
	for _, seen := range c.Seen {
		v := h.at(seen.Group, h.newest(seen.Group).Version)
		if v.Version != seen.Version || v.State == tenure.Led {
			conflict.Current = append(conflict.Current, v)
			words = append(words, inWords(v))
		}
	}
	switch {
	case len(words) > 0 && how == 6: // some engines cannot tell
		r.Err = &store.ConflictError{}
		return "conflict"
	case len(words) > 0:
		r.Err = conflict
		return "conflict " + strings.Join(words, "; ")
	}
	for _, seen := range c.Seen {
		rec := h.put(seen.Group, c.Session)
		r.Records = append(r.Records, rec)
		words = append(words, fmt.Sprintf("%s v%d token %d", rec.Group, rec.Version, rec.Token))
	}
	return fmt.Sprintf("won-by %s %s", c.Session, strings.Join(words, "; "))
}

func (h *heckler) release(c *Call, r *Reply) string {
	conflict := &store.ConflictError{}
	var words []string
	for _, held := range c.Held {
		if v := h.at(held.Group, h.newest(held.Group).Version); v.Version != held.Version || v.Holder != c.Session {
			conflict.Current = append(conflict.Current, v)
			words = append(words, inWords(v))
		}
	}
	switch {
	case len(words) > 0:
		r.Err = conflict
		return "conflict " + strings.Join(words, "; ")
	case c.To != "" && h.dead[c.To]:
		r.Err = store.ErrSuccessor
		return "successor"
	}
	verb, to := "released ", ""
	if c.To != "" {
		verb, to = "handed ", " to "+string(c.To)
	}
	for _, held := range c.Held {
		rec := h.put(held.Group, c.To)
		r.Records = append(r.Records, rec)
		words = append(words, fmt.Sprintf("%s v%d token %d%s", held.Group, rec.Version, rec.Token, to))
	}
	return verb + strings.Join(words, "; ")
}

// repeat says an answer again, or one that nobody asked for. Nothing follows.
func (h *heckler) repeat(which int) {
	r := &Reply{ID: h.lastID + 7, Records: []store.Record{{Group: "g", Version: 99, Token: 99, Holder: h.trusted}}}
	if which < len(h.answered) {
		r = h.answered[len(h.answered)-1-which]
	}
	if h.m.Next() <= h.now {
		return // something is due
	}
	h.line("# call %d is answered again", r.ID)
	if actions := h.m.Step(h.now, Event{Kind: OnReply, Reply: r}); len(actions) > 0 {
		h.broken("an answer that nobody waits for is heard: %s", describe(actions[0]))
	}
}

// step steps the machine, and again while it wants to be: that must have an end.
func (h *heckler) step(events ...Event) {
	defer func() {
		if p := recover(); p != nil {
			h.broken("panic: %v", p)
		}
	}()
	for i := 0; h.err == nil; i++ {
		actions := h.m.Step(h.now, events...)
		events = nil
		for j := range actions {
			if a := &actions[j]; a.Kind != DoNote {
				h.line("  %-12s %s", at(h.now), describe(*a))
				h.act(a)
			}
		}
		h.lasting()
		if h.m.Next() > h.now {
			return
		}
		if i == 3 {
			h.broken("the machine spins: it wants to be woken at %s", at(h.m.Next()))
		}
	}
}

// act checks what the machine wants to be done, at the moment that it does.
func (h *heckler) act(a *Action) {
	term := func() *played {
		i := slices.IndexFunc(h.terms, func(t *played) bool { return t.group == a.Group && t.token == a.Token })
		if i < 0 {
			return nil
		}
		return h.terms[i]
	}
	if h.stopped {
		h.broken("a stopped machine acts")
	}
	switch a.Kind {
	case DoCall:
		h.call(a.Call)
	case DoWatch:
		h.watches = true
		clear(h.shown)
		for _, g := range h.groups() {
			h.watched[g] = h.newest(g).Version
		}
	case DoTrust:
		want := h.acked.Add(h.cfg.Timing.Trust(h.granted) - h.cfg.Timing.Grace)
		if a.Session.ID == h.trusted {
			want = max(want, h.until)
		}
		if h.acked < 0 || a.Until != want {
			h.broken("M2: trusted until %s, by what was acknowledged it is %s", at(a.Until), at(want))
		}
		h.trusted, h.until = a.Session.ID, a.Until
	case DoBegin:
		switch {
		case !h.wants[a.Group]:
			h.broken("M1: a term of %s begins that nobody campaigns for", a.Group)
		case a.Record.Holder != h.trusted:
			h.broken("M1: a term of %s begins on a record that names %q, not %q", a.Group, a.Record.Holder, h.trusted)
		case h.now >= h.until:
			h.broken("M1: a term of %s begins without trust", a.Group)
		case a.Token <= h.begun[a.Group]:
			h.broken("M1: a term of %s begins with token %d after token %d", a.Group, a.Token, h.begun[a.Group])
		case a.Token != a.Record.Token || a.Group != a.Record.Group:
			h.broken("M1: a term of %s with token %d begins on another's record", a.Group, a.Token)
		}
		h.wants[a.Group] = false
		h.begun[a.Group] = max(h.begun[a.Group], a.Token)
		h.terms = append(h.terms, &played{group: a.Group, token: a.Token, session: a.Record.Holder})
	case DoEnd:
		t := term()
		if t == nil || t.ended {
			h.broken("a term of %s ends that does not run", a.Group)
			return
		}
		t.ended = true
	case DoFail:
		h.wants[a.Group] = false
	case DoSettle:
		if t := term(); t != nil && !t.returned {
			h.broken("M4: the release of %s is settled before work has returned", a.Group)
		}
	case DoOverrun:
		if t := term(); t == nil || !t.ended || t.returned {
			h.broken("an overrun of %s, which is not one", a.Group)
		}
	case DoStopped:
		h.stopped = true
		for _, t := range h.terms {
			if !t.returned {
				h.broken("M4: stopped while work of %s runs", t.group)
			}
		}
	}
}

func (h *heckler) call(c *Call) {
	if c.ID <= h.lastID || c.Timeout != h.cfg.Timing.CallTimeout {
		h.broken("call %d after call %d, with %v to answer", c.ID, h.lastID, c.Timeout)
	}
	h.lastID = c.ID
	h.calls = append(h.calls, &asked{Call: c, sent: h.now})
	switch c.Kind {
	case CallBeat, CallAcquire:
		if c.Session != h.trusted || h.now >= h.until {
			h.broken("M1: %s without trust", describeCall(c))
		}
		if c.Kind == CallAcquire && (len(c.Seen) == 0 || len(c.Seen) > h.cfg.Caps.Batch) {
			h.broken("a batch of %d, the limit is %d", len(c.Seen), h.cfg.Caps.Batch)
		}
	case CallRelease:
		for _, t := range h.terms {
			if slices.ContainsFunc(c.Held, func(r store.Record) bool { return t.group == r.Group && t.token == r.Token }) && !t.returned {
				h.broken("M4: %s while its work runs", describeCall(c))
			}
		}
	case CallClose:
		for _, t := range h.terms {
			if t.session == c.Session && !t.returned {
				h.broken("M4: %s while work of %s runs", describeCall(c), t.group)
			}
		}
	}
}

// lasting checks what must hold between the steps.
func (h *heckler) lasting() {
	h.terms = slices.DeleteFunc(h.terms, func(t *played) bool { return t.ended && t.returned })
	for _, t := range h.terms {
		if !t.ended && (t.session != h.trusted || h.now >= h.until) {
			h.broken("M3: the term of %s with token %d outlives its trust", t.group, t.token)
		}
	}
	h.calls = slices.DeleteFunc(h.calls, func(c *asked) bool { return h.now.Sub(c.sent) > h.cfg.Timing.TTL })
	var inFlight [kinds]int
	for _, f := range h.m.calls {
		if !f.late {
			inFlight[f.Kind]++
			if h.now >= f.sent.Add(f.Timeout) && !h.m.stopped {
				h.broken("a call of kind %v is not given up after %v", f.Kind, f.Timeout)
			}
		}
	}
	for k, n := range inFlight {
		if n > maxInFlight[k] {
			h.broken("%d calls of kind %v are under way, the bound is %d", n, CallKind(k), maxInFlight[k])
		}
		if n != h.m.inFlight[k] {
			h.broken("%d calls of kind %v are under way, the machine counts %d", n, CallKind(k), h.m.inFlight[k])
		}
	}
	if h.stopped || h.m.stopped {
		return
	}
	h.inside()
}

// inside looks into the machine: whoever has something to do has a time for it,
// or a call under way, or a place in a queue.
func (h *heckler) inside() {
	m := h.m
	underWay := func(k CallKind, of func(*flight) bool) bool {
		return slices.ContainsFunc(m.calls, func(f *flight) bool { return f.Kind == k && !f.late && of(f) })
	}
	if s := m.session; s != nil && s.beatAt == clock.Never && !underWay(CallBeat, func(f *flight) bool { return f.session == s }) {
		h.broken("session %s is not kept alive any more", s.ID)
	}
	actives := 0
	for i, s := range m.order {
		if s.active {
			actives++
		}
		due := min(s.tryAt, s.readAt)
		for _, g := range []*hold{s.hold, s.lostHold} {
			if g != nil && !g.returned {
				due = min(due, g.overrunAt)
			}
			if g != nil {
				due = min(due, g.retryAt)
			}
		}
		if s.order != i || (s.place >= 0) != (due != clock.Never) || s.place >= 0 && (m.wakes[s.place] != s || s.wake != due) {
			h.broken("%s is not where it belongs among those who wait", s.group)
		}
		switch {
		case m.stopping:
		case s.active && m.session == nil && !m.opening && m.openAt == clock.Never:
			h.broken("%s needs a session and none is opened", s.group)
		case s.wants && m.watching == watchOff && m.watchAt == clock.Never:
			h.broken("%s is wanted and not watched", s.group)
		case s.eligible(m) && (m.lineKnown || !s.wants) && s.call == 0 && s.tryAt == clock.Never && !slices.Contains(m.acquires, s):
			h.broken("%s is vacant, wanted, and never tried for", s.group)
		case s.confirming && s.readAt == clock.Never && !slices.Contains(m.reads, s) &&
			!underWay(CallRead, func(f *flight) bool { return f.groups[0] == s }):
			h.broken("M5: %s waits for a read that is not made", s.group)
		case s.known && m.session != nil && s.view.State == tenure.Led && s.view.Holder == m.session.ID &&
			s.hold == nil && !s.confirming && s.call == 0:
			h.broken("M5: %s is held by %s, and neither led nor released", s.group, m.session.ID)
		case s.hold != nil && s.hold.returned && !s.hold.call && s.hold.retryAt == clock.Never && !slices.Contains(m.releases, s):
			h.broken("M5: %s is not released", s.group)
		}
	}
	if actives != m.actives {
		h.broken("%d groups need a session, the machine counts %d", actives, m.actives)
	}
	for i := range m.wakes {
		if i > 0 && m.wakes.Less(i, (i-1)/2) {
			h.broken("the heap of those who wait is in disorder")
		}
	}
}

// The pause after the nth failure is never longer than the bound that doubles,
// and uses all of it.
func TestBackoffBounds(t *testing.T) {
	timing := defaults()
	m := New(Config{Timing: timing, Seed: 1})
	for fails := range 100 {
		bound := timing.BackoffMax
		if fails < 6 {
			bound = min(bound, timing.BackoffMin*time.Duration(1<<fails))
		}
		var most time.Duration
		for range 1000 {
			d := m.backoff(fails)
			if d < 0 || d > bound {
				t.Fatalf("after %d failures: %v, the bound is %v", fails, d, bound)
			}
			most = max(most, d)
		}
		if most < bound*9/10 {
			t.Errorf("after %d failures: %v at most, of %v", fails, most, bound)
		}
	}
}

// The pause before a session is opened again grows with the fleet: to BackoffMax for a
// few candidates, to one step for each of many, and to two TTLs at most.
func TestPauseGrowsWithFleet(t *testing.T) {
	timing := defaults()
	for candidates, bound := range map[int]time.Duration{0: timing.BackoffMax, 3: timing.BackoffMax, 500: 500 * timing.Step, 1000: 2 * timing.TTL} {
		line := make(lineOf, candidates)
		m := New(Config{Timing: timing, Seed: 1, Line: &line})
		var most time.Duration
		for range 1000 {
			most = max(most, m.pause(20))
		}
		if most > bound || most < bound*9/10 {
			t.Errorf("%d candidates: %v at most, want %v", candidates, most, bound)
		}
		if first := m.pause(0); first > timing.BackoffMin {
			t.Errorf("%d candidates: %v after the first failure", candidates, first)
		}
	}
}

// Seats come out of the heap in the order of their wakes, and of their arrival
// where those are equal, whatever was put in, moved and taken out before.
func TestWakes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	var w wakes
	groups := make([]*groupState, 50)
	for i := range groups {
		groups[i] = &groupState{order: i, place: -1}
	}
	for range 10000 {
		s := groups[r.IntN(len(groups))]
		s.wake = clock.Instant(r.IntN(20))
		w.fix(s, r.IntN(3) > 0)
		for i := 1; i < len(w); i++ {
			if w.Less(i, (i-1)/2) {
				t.Fatalf("place %d of %d comes before its parent", i, len(w))
			}
		}
	}
	var want, got []int
	for _, s := range slices.SortedFunc(slices.Values(w), func(a, b *groupState) int {
		return cmp.Or(cmp.Compare(a.wake, b.wake), cmp.Compare(a.order, b.order))
	}) {
		want = append(want, s.order)
	}
	for len(w) > 0 {
		got = append(got, w[0].order)
		w.fix(w[0], false)
	}
	if len(want) < 10 || !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// bench is a store that answers at once and well, for machines with many groups.
type bench struct {
	b   *testing.B
	m   *Machine
	now clock.Instant
	led int
}

// newBench returns a machine that waits for n groups, all led by b1.
func newBench(b *testing.B, n int) *bench {
	line := lineOf(sessionsOf(strings.Fields("b1 a1 c1 d1 e1 f1 g1 h1")))
	s := &bench{b: b, m: New(Config{
		Timing: defaults(), Candidate: tenure.Candidate{ID: "a"}, Scope: store.Scope{"*"}, Caps: store.Caps{Batch: 100}, Seed: 1, Line: &line,
	})}
	var events []Event
	for i := range n {
		events = append(events, Event{Kind: OnCampaign, Group: fmt.Sprintf("shard-%d", i)})
	}
	s.talk(events)
	s.talk(append(s.views(n, tenure.Led), Event{Kind: OnView, View: &store.View{}}))
	if s.led != 0 {
		b.Fatalf("%d groups are led that are not vacant", s.led)
	}
	return s
}

func (s *bench) views(n int, state tenure.State) []Event {
	var events []Event
	for i := range n {
		v := store.View{Record: store.Record{Group: fmt.Sprintf("shard-%d", i), Version: 1, Token: 1, Holder: "b1"}, State: state}
		events = append(events, Event{Kind: OnView, View: &v})
	}
	return events
}

// talk says the events, as many in a step as the shell's queue holds, and answers
// until the machine is quiet.
func (s *bench) talk(events []Event) {
	for {
		n := min(len(events), 4096)
		more := s.answers(s.m.Step(s.now, events[:n]...))
		events = events[n:]
		if len(more) == 0 && len(events) == 0 {
			return
		}
		events = append(more, events...)
	}
}

// answers to everything that the machine asks.
func (s *bench) answers(actions []Action) []Event {
	var events []Event
	for i := range actions {
		a := &actions[i]
		if a.Kind == DoBegin {
			s.led++
		}
		if a.Kind != DoCall {
			continue
		}
		r := &Reply{ID: a.Call.ID}
		switch a.Call.Kind {
		case CallOpen:
			r.Session = sessionOf("a1")
			r.Session.TTL = a.Call.TTL
		case CallBeat:
			r.Beat.TTL = s.m.cfg.Timing.TTL
		case CallAcquire:
			for _, seen := range a.Call.Seen {
				r.Records = append(r.Records, store.Record{Group: seen.Group, Version: seen.Version + 1, Token: seen.Token + 1, Holder: a.Call.Session})
			}
		}
		events = append(events, Event{Kind: OnReply, Reply: r})
	}
	return events
}

// A beat costs the same for one group and for ten thousand; a mass vacancy costs the same
// per group.
func BenchmarkStep(b *testing.B) {
	for _, n := range []int{1, 10000} {
		perGroup := func(b *testing.B) {
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/group")
		}
		// leading returns a machine that leads all of them.
		leading := func(b *testing.B) *bench {
			s := newBench(b, n)
			s.talk(s.views(n, tenure.Vacant))
			if s.led != n {
				b.Fatalf("%d of %d groups are led", s.led, n)
			}
			return s
		}
		b.Run(fmt.Sprintf("beat/groups=%d", n), func(b *testing.B) {
			s := leading(b)
			b.ResetTimer()
			for range b.N {
				s.now = s.now.Add(s.m.cfg.Timing.Beat)
				s.talk(nil)
			}
			perGroup(b)
		})
		b.Run(fmt.Sprintf("vacancy/groups=%d", n), func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				s := newBench(b, n)
				views := s.views(n, tenure.Vacant)
				b.StartTimer()
				s.talk(views)
				if s.led != n {
					b.Fatalf("%d of %d groups are led", s.led, n)
				}
			}
			perGroup(b)
		})
	}
}
