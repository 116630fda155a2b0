package machine

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store"
)

var update = flag.Bool("update", false, "write what the machine answers into testdata")

// The machine answers as it did when somebody last read the answers. Each file
// in testdata is one story and opens with its claim. After a change that is
// meant, go test -update writes the answers anew: read them before you keep them.
func TestConversations(t *testing.T) {
	for _, file := range conversations(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(string(want), "# ") {
				t.Errorf("%s does not open with its claim", file)
			}
			got, err := converse(string(want), plant.Set{})
			if err != nil {
				t.Fatalf("%s:%v, after\n%s", file, err, got)
			}
			if got == string(want) {
				return
			}
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("%s:%s", file, firstDifference(got, string(want)))
		})
	}
}

// Every bug that can be planted in the machine changes what it says in one of
// the conversations: they look everywhere.
func TestConversationsNoticePlantedBugs(t *testing.T) {
	if !plant.Enabled {
		t.Skip("nothing can be planted in this build")
	}
	var bugs []plant.Bug
	for bug := plant.TrustFromReply; bug <= plant.TrustSilentWatch; bug++ {
		bugs = append(bugs, bug)
	}
	for _, bug := range bugs {
		t.Run(bug.String(), func(t *testing.T) {
			for _, file := range conversations(t) {
				want, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				got, err := converse(string(want), plant.Of(bug))
				if err != nil || got != string(want) {
					t.Logf("noticed in %s", file)
					return
				}
			}
			t.Error("not noticed")
		})
	}
}

func conversations(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no conversations: %v", err)
	}
	return files
}

// firstDifference shows the place, and what came before it.
func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	i := 0
	for i < len(g) && i < len(w) && g[i] == w[i] {
		i++
	}
	from := max(0, i-8)
	part := func(lines []string) string {
		return strings.Join(lines[min(from, len(lines)):min(i+4, len(lines))], "\n")
	}
	return fmt.Sprintf("%d: got\n%s\n\nwant\n%s", i+1, part(g), part(w))
}

// conversation is a machine, and the script that talks to it. The machine is
// candidate a; session b2 is the second one of candidate b. What is indented is
// the machine's answer: each action with its time, then when it wants to be woken.
//
// Before the story:
//
//	timing grace 1s; timing wan; batch 2; show notes
//	given line b1 a1                  who stands in line, in this order (a1 alone)
//	given session a1                  the machine starts with it
//	given lent a1                     the same, and it is another's
//	given view g v1 led by b1 token 1 what the watch finds at first
//	given leads g h                   everything up to the win, at 0s, unseen
//	given waits g                     the same for who does not win
//
// What is said:
//
//	line b1 a1                        who stands in line now
//	campaign g h; try g; withdraw g; ended g 4 resigned; returned g 4 to b; returned g 4 to b b1
//	health ok; health sick; shutdown; synced; watch lost
//	view g v5 led by b1 token 4       b1 lives
//	view g v5 led by b1 token 4 transferred by c1
//	view g v5 vacant token 4 after b1 b1 is dead
//	view g v6 vacant token 4          released
//	view g v6 released token 4 by b1  the record says by whom
//	reply 3 …                         to call 3, see reply
//	+2s …                             after two seconds, at which the machine was
//	                                  woken whenever it wanted
//	still 9s                          nine seconds in which the process stood still
//	… & …                             both in one step
type conversation struct {
	cfg   Config
	m     *Machine
	now   clock.Instant
	calls map[uint64]*Call
	line  lineOf
	views []store.View
	notes bool
	quiet bool
	out   strings.Builder
}

// converse runs a script and returns it with the answers that the machine gives
// now. An error is the script's, and begins with its line.
func converse(script string, bugs plant.Set) (string, error) {
	c := &conversation{
		cfg: Config{
			Timing: defaults(), Candidate: tenure.Candidate{ID: "a"}, Scope: store.Scope{"*"}, Caps: store.Caps{Batch: 100},
			Seed: 1, Plant: bugs,
		},
		calls: map[uint64]*Call{},
	}
	c.line = lineOf{sessionOf("a1")}
	c.cfg.Line = &c.line
	for i, line := range strings.Split(strings.TrimSuffix(script, "\n"), "\n") {
		if strings.HasPrefix(line, "  ") {
			continue // an answer: it is given anew
		}
		c.out.WriteString(line + "\n")
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := c.say(line); err != nil {
			return c.out.String(), fmt.Errorf("%d: %q: %w", i+1, line, err)
		}
	}
	return c.out.String(), nil
}

// say executes one line.
func (c *conversation) say(line string) (err error) {
	defer func() {
		// A planted machine may do what no machine should.
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	words := strings.Fields(line)
	switch words[0] {
	case "timing", "batch", "show", "given":
		return c.prepare(words)
	case "line":
		c.line = sessionsOf(words[1:])
		return nil
	case "still":
		d, err := time.ParseDuration(words[1])
		c.now = c.now.Add(d)
		return err
	}
	c.machine()
	after, isWait := strings.CutPrefix(words[0], "+")
	if isWait {
		d, err := time.ParseDuration(after)
		if err != nil {
			return err
		}
		line = strings.TrimSpace(strings.TrimPrefix(line, words[0]))
		if err := c.wait(c.now.Add(d), line == ""); err != nil {
			return err
		}
	}
	if line != "" {
		var events []Event
		for part := range strings.SplitSeq(line, " & ") {
			es, err := c.events(strings.Fields(part))
			if err != nil {
				return err
			}
			events = append(events, es...)
		}
		c.step(events...)
	}
	c.answer("next", at(c.m.Next()))
	return nil
}

func (c *conversation) machine() {
	if c.m == nil {
		c.m = New(c.cfg)
	}
}

// wait lets time pass. What is due at its end comes together with what is said
// then, if anything is.
func (c *conversation) wait(until clock.Instant, inclusive bool) error {
	idle := 0
	for {
		next := max(c.m.Next(), c.now)
		if next > until || next == until && !inclusive {
			c.now = until
			return nil
		}
		if next > c.now {
			idle = 0
		}
		if idle++; idle > 3 {
			return errors.New("the machine wants to be woken at once, again and again")
		}
		c.now = next
		c.step()
	}
}

func (c *conversation) step(events ...Event) {
	for _, a := range c.m.Step(c.now, events...) {
		if a.Kind == DoCall {
			c.calls[a.Call.ID] = a.Call
		}
		if a.Kind != DoNote || c.notes {
			c.answer(at(c.now), describe(a))
		}
	}
}

func (c *conversation) answer(when, what string) {
	if !c.quiet {
		fmt.Fprintf(&c.out, "  %-12s %s\n", when, what)
	}
}

// prepare sets the scene.
func (c *conversation) prepare(words []string) error {
	if c.m != nil && words[0] != "given" {
		return errors.New("too late: the machine is made")
	}
	var err error
	switch {
	case words[0] == "show" && words[1] == "notes":
		c.notes = true
	case words[0] == "batch":
		c.cfg.Caps.Batch, err = strconv.Atoi(words[1])
	case words[0] == "timing" && words[1] == "wan":
		c.cfg.Timing = wan()
	case words[0] == "timing" && words[1] == "grace":
		c.cfg.Timing.Grace, err = time.ParseDuration(words[2])
	case words[0] == "given" && words[1] == "line":
		c.line = sessionsOf(words[2:])
	case words[0] == "given" && (words[1] == "session" || words[1] == "lent"):
		s := c.opened(words[2])
		c.cfg.Session, c.cfg.Lent = &s, words[1] == "lent"
	case words[0] == "given" && words[1] == "view":
		var v store.View
		v, err = viewOf(words[2:])
		c.views = append(c.views, v)
	case words[0] == "given" && (words[1] == "leads" || words[1] == "waits"):
		c.quiet = true
		err = c.begun(words[2:], words[1] == "leads")
		c.quiet = false
	default:
		err = errors.New("not understood")
	}
	return err
}

// begun brings the machine to where many stories begin: every call is answered
// at once and well.
func (c *conversation) begun(groups []string, leads bool) error {
	c.machine()
	var events []Event
	for _, g := range groups {
		events = append(events, Event{Kind: OnCampaign, Group: g})
	}
	for range 10 {
		actions := slices.Clone(c.m.Step(c.now, events...))
		events = nil
		for _, a := range actions {
			if a.Kind == DoCall {
				c.calls[a.Call.ID] = a.Call
			}
			switch {
			case a.Kind == DoWatch:
				for i := range c.views {
					events = append(events, Event{Kind: OnView, View: &c.views[i]})
				}
				events = append(events, Event{Kind: OnView, View: &store.View{}})
			case a.Kind == DoCall && a.Call.Kind == CallOpen:
				events = append(events, Event{Kind: OnReply, Reply: &Reply{ID: a.Call.ID, Session: c.opened("a1")}})
			case a.Kind == DoCall && a.Call.Kind == CallAcquire:
				r := &Reply{ID: a.Call.ID}
				for _, seen := range a.Call.Seen {
					r.Records = append(r.Records, store.Record{Group: seen.Group, Version: seen.Version + 1, Token: seen.Token + 1, Holder: a.Call.Session})
				}
				events = append(events, Event{Kind: OnReply, Reply: r})
			case a.Kind == DoCall:
				return fmt.Errorf("unexpected %s", describe(a))
			}
		}
	}
	for _, g := range groups {
		if c.m.groups[g].leads() != leads {
			return fmt.Errorf("leads %s: %v", g, !leads)
		}
	}
	return nil
}

// events parses one thing that is said.
func (c *conversation) events(words []string) ([]Event, error) {
	arg := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	switch words[0] {
	case "campaign", "withdraw", "try":
		kind := OnCampaign
		if words[0] == "withdraw" {
			kind = OnWithdraw
		}
		var events []Event
		for _, g := range words[1:] {
			events = append(events, Event{Kind: kind, Group: g, Once: words[0] == "try"})
		}
		return events, nil
	case "ended":
		token, err := strconv.ParseUint(arg(2), 10, 64)
		cause := causes()[arg(3)]
		if err != nil || cause == nil {
			return nil, errors.New("ended GROUP TOKEN CAUSE")
		}
		return []Event{{Kind: OnEnded, Group: arg(1), Token: fence.Token(token), Cause: cause}}, nil
	case "returned":
		token, err := strconv.ParseUint(arg(2), 10, 64)
		return []Event{{Kind: OnReturned, Group: arg(1), Token: fence.Token(token), To: arg(4), Session: store.SessionID(arg(5))}}, err
	case "health":
		e := Event{Kind: OnHealth}
		if arg(1) != "ok" {
			e.Cause = errors.New(arg(1))
		}
		return []Event{e}, nil
	case "shutdown":
		return []Event{{Kind: OnShutdown}}, nil
	case "synced":
		return []Event{{Kind: OnView, View: &store.View{}}}, nil
	case "watch":
		cause := errReset
		if arg(2) == "denied" {
			cause = store.ErrDenied
		}
		return []Event{{Kind: OnWatchLost, Cause: cause}}, nil
	case "view":
		v, err := viewOf(words[1:])
		return []Event{{Kind: OnView, View: &v}}, err
	case "reply":
		id, err := strconv.ParseUint(arg(1), 10, 64)
		call := c.calls[id]
		if err != nil || call == nil {
			return nil, fmt.Errorf("no such call: %s", arg(1))
		}
		if kinds := answers()[arg(2)]; kinds != nil && !slices.Contains(kinds, call.Kind) {
			return nil, fmt.Errorf("call %d is: %s", id, describeCall(call))
		}
		r, err := c.reply(words[2:])
		if err != nil {
			return nil, err
		}
		r.ID = id
		return []Event{{Kind: OnReply, Reply: r}}, nil
	}
	return nil, errors.New("not understood")
}

// answers says which calls an answer fits, if not all.
func answers() map[string][]CallKind {
	return map[string][]CallKind{
		"opened": {CallOpen}, "beat": {CallBeat}, "sessions": {CallSessions}, "read": {CallRead}, "ok": {CallClose, CallAnswer},
		"won": {CallAcquire}, "won-by": {CallAcquire}, "released": {CallRelease}, "handed": {CallRelease},
		"conflict": {CallAcquire, CallRelease}, "successor": {CallRelease},
	}
}

// errReset is an error that leaves the outcome unknown.
var errReset = errors.New("connection reset")

// reply parses what the store says:
//
//	opened a1 · beat · beat for 6s · beat asked r1 step-down g cool-down 10s; r2 transfer g to b
//	beat read g v5 led by b1 token 4 · sessions b1 a1 c1(other-*) · won g v2 token 2 · won-by a1 g v2 token 2 (which is gone)
//	released g v3 token 2
//	handed g v3 token 3 to b1 · read g v5 led by b1 token 4 · ok
//	conflict g v5 led by b1 token 4 · conflict (the engine cannot tell)
//	dead · lost (the connection, the outcome is unknown) · rewound · busy · successor
//
// Views and records are separated by ";".
func (c *conversation) reply(words []string) (*Reply, error) {
	r := &Reply{}
	rest := words[1:]
	switch words[0] {
	case "ok":
	case "opened":
		r.Session = c.opened(rest[0])
	case "beat":
		r.Beat.TTL = c.cfg.Timing.TTL
		switch {
		case len(rest) == 2 && rest[0] == "for":
			var err error
			if r.Beat.TTL, err = time.ParseDuration(rest[1]); err != nil {
				return nil, err
			}
		case len(rest) > 0 && rest[0] == "read":
			for _, part := range parts(rest[1:]) {
				v, err := viewOf(part)
				if err != nil {
					return nil, err
				}
				if v.State == tenure.Vacant {
					v.Terms = []store.Term{{Session: v.Holder, End: time.Unix(1, 0)}}
				}
				r.Beat.Records = append(r.Beat.Records, v.Record)
			}
		case len(rest) > 0:
			for _, part := range parts(rest[1:]) {
				q, err := requestOf(part)
				if err != nil {
					return nil, err
				}
				r.Beat.Requests = append(r.Beat.Requests, q)
			}
		}
	case "sessions":
		r.Sessions = sessionsOf(rest)
	case "won", "won-by":
		// The session is the present one, unless it is named.
		by := ""
		if c.m.session != nil {
			by = string(c.m.session.ID)
		}
		if words[0] == "won-by" {
			by, rest = rest[0], rest[1:]
		}
		for _, part := range parts(rest) {
			v, err := viewOf(append(slices.Clone(part[:2]), append([]string{"led", "by", by}, part[2:]...)...))
			if err != nil {
				return nil, err
			}
			r.Records = append(r.Records, v.Record)
		}
	case "released":
		for _, part := range parts(rest) {
			v, err := viewOf(append(slices.Clone(part[:2]), append([]string{"vacant"}, part[2:]...)...))
			if err != nil {
				return nil, err
			}
			r.Records = append(r.Records, v.Record)
		}
	case "handed":
		for _, part := range parts(rest) {
			v, err := viewOf(append(slices.Clone(part[:2]), append([]string{"led", "by", part[5]}, part[2:4]...)...))
			if err != nil {
				return nil, err
			}
			r.Records = append(r.Records, v.Record)
		}
	case "read":
		v, err := viewOf(rest)
		if err != nil {
			return nil, err
		}
		r.View = v
	case "conflict":
		conflict := &store.ConflictError{}
		for _, part := range parts(rest) {
			v, err := viewOf(part)
			if err != nil {
				return nil, err
			}
			conflict.Current = append(conflict.Current, v)
		}
		r.Err = conflict
	default:
		r.Err = map[string]error{
			"dead": store.ErrSessionDead, "lost": errReset, "rewound": store.ErrRewound, "busy": store.ErrBusy, "successor": store.ErrSuccessor,
			"cordoned": &store.BarError{Code: "cordoned", Detail: "cordoned"}, "barred": &store.BarError{Code: "not_a_member", Group: "billing", Detail: "not a member"},
			"denied": store.ErrDenied, "unauthenticated": store.ErrUnauthenticated, "invalid": store.ErrInvalid, "newer": store.ErrNewer,
		}[words[0]]
		if r.Err == nil {
			return nil, errors.New("not understood")
		}
	}
	return r, nil
}

// parts splits words at those that end in ";".
func parts(words []string) [][]string {
	var all [][]string
	var part []string
	for _, w := range words {
		last := strings.HasSuffix(w, ";")
		part = append(part, strings.TrimSuffix(w, ";"))
		if last {
			all, part = append(all, part), nil
		}
	}
	if len(part) > 0 {
		all = append(all, part)
	}
	return all
}

// sessionOf makes "b2(shard-*)" the second session of candidate b, standing for
// the shards; without brackets it stands for everything.
func sessionOf(word string) store.Session {
	id, scope, scoped := strings.Cut(strings.TrimSuffix(word, ")"), "(")
	if !scoped {
		scope = "*"
	}
	name := strings.TrimRight(id, "0123456789")
	opened, _ := strconv.ParseUint(strings.TrimPrefix(id, name), 10, 64)
	return store.Session{ID: store.SessionID(id), Candidate: tenure.Candidate{ID: name}, Scope: strings.Split(scope, ","), Opened: opened}
}

// opened is a session that was granted what was asked for.
func (c *conversation) opened(word string) store.Session {
	s := sessionOf(word)
	s.TTL = c.cfg.Timing.TTL
	return s
}

// lineOf is a line in the order in which it is given.
type lineOf []store.Session

func (l *lineOf) Len() int { return len(*l) }

func (l *lineOf) Ahead(s store.Session, group string, last store.SessionID) int {
	ahead := 0
	for _, o := range *l {
		switch {
		case o.ID == s.ID && s.Candidate.Priority != math.MinInt:
			return ahead
		case o.ID != s.ID && o.ID != last && o.Scope.Covers(group):
			ahead++
		}
	}
	return ahead
}

func (l *lineOf) First(group string, but store.SessionID) (store.SessionID, bool) {
	for _, s := range *l {
		if s.ID != but && s.Scope.Covers(group) {
			return s.ID, true
		}
	}
	return "", false
}

func (l *lineOf) Newest(_, candidate string, but store.SessionID) (store.SessionID, bool) {
	id := Newest(*l, candidate, but)
	return id, id != ""
}

func sessionsOf(words []string) []store.Session {
	var line []store.Session
	for _, w := range words {
		line = append(line, sessionOf(w))
	}
	return line
}

// viewOf parses "g v5 led by b1 token 4" and "g v5 vacant token 4 after b1".
func viewOf(words []string) (store.View, error) {
	fail := fmt.Errorf("not a view: %q", strings.Join(words, " "))
	if len(words) < 5 {
		return store.View{}, fail
	}
	v := store.View{Record: store.Record{Group: words[0]}, State: tenure.Vacant}
	if n := len(words); n == 10 && words[7] == "transferred" {
		v.Terms = []store.Term{{Session: store.SessionID(words[9]), Reason: store.Transferred}, {Session: store.SessionID(words[4])}}
		words = words[:7]
	}
	rest := words[3:]
	switch {
	case words[2] == "led" && words[3] == "by" && len(words) == 7:
		v.State, v.Holder = tenure.Led, store.SessionID(words[4])
		rest = words[5:]
	case words[2] == "vacant" && len(words) == 7 && words[5] == "after":
		v.Holder = store.SessionID(words[6])
	case words[2] == "vacant" && len(words) == 5:
	case words[2] == "released" && len(words) == 7 && words[5] == "by":
		v.Terms = []store.Term{{Session: store.SessionID(words[6])}}
	default:
		return store.View{}, fail
	}
	version, err := strconv.ParseUint(strings.TrimPrefix(words[1], "v"), 10, 64)
	if err != nil || rest[0] != "token" {
		return store.View{}, fail
	}
	token, err := strconv.ParseUint(rest[1], 10, 64)
	if err != nil {
		return store.View{}, fail
	}
	v.Version, v.Token = version, fence.Token(token)
	v.Candidate = sessionOf(string(v.Holder)).Candidate
	return v, nil
}

// requestOf parses "r1 transfer g token 4 to b cool-down 10s".
func requestOf(words []string) (store.Request, error) {
	if len(words) < 3 {
		return store.Request{}, errors.New("not a request")
	}
	r := store.Request{ID: words[0], Verb: store.Verb(words[1]), Group: words[2], Reason: "for a test"}
	for i := 3; i+1 < len(words); i += 2 {
		var err error
		switch value := words[i+1]; words[i] {
		case "to":
			r.To = value
		case "token":
			var n uint64
			n, err = strconv.ParseUint(value, 10, 64)
			r.Token = fence.Token(n)
		case "cool-down":
			r.CoolDown, err = time.ParseDuration(value)
		default:
			err = fmt.Errorf("not understood: %s", words[i])
		}
		if err != nil {
			return r, err
		}
	}
	return r, nil
}

func causes() map[string]error {
	return map[string]error{
		"expired": tenure.ErrExpired, "lost": tenure.ErrLost, "resigned": tenure.ErrResigned,
		"transferred": tenure.ErrTransferred, "unhealthy": tenure.ErrUnhealthy,
	}
}

// cause is the word for it, or what it says.
func cause(err error) string {
	for word, c := range causes() {
		if errors.Is(err, c) {
			return word
		}
	}
	return err.Error()
}

func at(i clock.Instant) string {
	if i == clock.Never {
		return "never"
	}
	return time.Duration(i).String()
}

// describe writes an action in words.
func describe(a Action) string {
	with := func(s string, err error) string {
		if err != nil {
			s += ": " + cause(err)
		}
		return s
	}
	term := fmt.Sprintf("%s token %d", a.Group, a.Token)
	switch a.Kind {
	case DoCall:
		return fmt.Sprintf("call %d: %s", a.Call.ID, describeCall(a.Call))
	case DoWatch:
		return "watch"
	case DoTrust:
		return fmt.Sprintf("trust %s until %s", a.Session.ID, at(a.Until))
	case DoRisk:
		return fmt.Sprintf("%s is at risk", a.Session.ID)
	case DoBegin:
		return fmt.Sprintf("begin %s v%d", term, a.Record.Version)
	case DoEnd:
		return with("end "+term, a.Cause)
	case DoFail:
		return with("fail "+a.Group, a.Cause)
	case DoSettle:
		return with("settle "+term, a.Cause)
	case DoOverrun:
		return with("overrun "+term, a.Cause)
	case DoStopped:
		return with("stopped", a.Cause)
	case DoNote:
		return "note: " + describeNote(a.Note)
	default:
		return fmt.Sprintf("action %d", a.Kind)
	}
}

func describeCall(c *Call) string {
	switch c.Kind {
	case CallOpen:
		return fmt.Sprintf("open for %v", c.TTL)
	case CallBeat:
		return strings.TrimSuffix(fmt.Sprintf("keep-alive %s, read %s", c.Session, strings.Join(c.Groups, " ")), ", read ")
	case CallClose:
		return fmt.Sprintf("close %s, %s", c.Session, c.Reason)
	case CallAcquire:
		var groups []string
		for _, r := range c.Seen {
			groups = append(groups, fmt.Sprintf("%s v%d", r.Group, r.Version))
		}
		return fmt.Sprintf("acquire for %s: %s", c.Session, strings.Join(groups, ", "))
	case CallRelease:
		to := ""
		if c.To != "" {
			to = " to " + string(c.To)
		}
		var held []string
		for _, r := range c.Held {
			held = append(held, fmt.Sprintf("%s v%d token %d", r.Group, r.Version, r.Token))
		}
		return fmt.Sprintf("release %s of %s%s, %s", strings.Join(held, ", "), c.Session, to, c.Reason)
	case CallSessions:
		return "sessions for " + c.Group
	case CallRead:
		return "read " + c.Group
	case CallAnswer:
		return strings.TrimSuffix(fmt.Sprintf("answer %s: %s, %s", c.Request, c.Answer.Outcome, c.Answer.Detail), ", ")
	default:
		return c.Kind.String()
	}
}

func describeNote(n Note) string {
	s := string(n.Kind)
	add := func(format string, value any, is bool) {
		if is {
			s += fmt.Sprintf(", "+format, value)
		}
	}
	add("%s", n.Call, n.Call != "")
	add("%s", n.Group, n.Group != "")
	add("token %d", n.Token, n.Token != 0)
	add("session %s", n.Session, n.Session != "")
	add("count %d", n.Count, n.Count != 0)
	add("took %v", n.Took, n.Took != 0)
	add("silent for %v", n.Silent, n.Silent != 0)
	add("%s", n.Detail, n.Detail != "")
	if n.Err != nil {
		s += ": " + cause(n.Err)
	}
	return s
}
