package fencetest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/suite"
)

// Sink describes the sink under test.
type Sink struct {
	// Name identifies the sink in a child process.
	Name string
	// Create makes a fresh resource, which nobody has written to, and returns where it is. It is
	// removed when the test ends. Start servers here, not earlier: a child process must not start
	// another.
	Create func(t testing.TB) (where string)
	// Open connects to a resource, in child processes too. Each call stands for a separate
	// process: connections share no memory.
	Open func(where string) (Resource, error)
	// Restart restarts the server of the resources, by kill if possible. Nil: there is no server.
	Restart func(t testing.TB)
	// MarkFirst: the mark is stored in a separate step before the effect, so after a crash it may
	// be ahead of the effect, never behind.
	MarkFirst bool
	// NoMoment is the reason why Write and WriteStrict never call Between: no process can be
	// paused between check and effect. Checks that need this are then skipped; without a reason
	// they fail.
	NoMoment string
	// Broken are the promises that the sink cannot keep.
	Broken []Promise
	// Patience is how long to wait for an expected event. Default 30 s.
	Patience time.Duration
}

// Resource is one connection to a resource. Every method is called from many goroutines. A
// refusal is one of the errors of package fence, by errors.As. Any other error fails the
// check, so the adapter must retry what a user would retry (a serialization failure, a busy
// file).
type Resource struct {
	// Write checks the stamp and makes the effect in one atomic step.
	Write func(ctx context.Context, s fence.Stamp, payload string) error
	// Effects returns the payloads of all effects, in the order in which they
	// were made.
	Effects func(ctx context.Context) ([]string, error)
	// Mark reads the mark. Nil: it cannot be read.
	Mark func(ctx context.Context) (fence.Mark, error)
	// Seal is that of fence.Sealer. Nil: the resource cannot be sealed.
	Seal func(ctx context.Context, s fence.Stamp) error
	// Advance raises the mark past the slip rule. Nil: not supported.
	Advance func(ctx context.Context, s fence.Stamp) error
	// WriteStrict is Write by the strict rule. The adapter chooses the answer to a write; a retry
	// must get the stored answer. Nil: not strict.
	WriteStrict func(ctx context.Context, s fence.Stamp, digest, payload string) (answer string, err error)
	// Close ends the connection. Nil: not needed.
	Close func() error
}

// Promise is a promise of a sink, and the name of the subtest that checks it.
type Promise string

// The promises.
const (
	FirstContact   Promise = "first contact is accepted"
	StaleRefused   Promise = "a lower token is refused after a higher one"
	OwnMark        Promise = "each resource has a mark of its own"
	NotOvertaken   Promise = "a write held between check and effect is not overtaken"
	Atomic         Promise = "no effect of the lower token follows one of the higher, with 100 writers"
	KillBetween    Promise = "kill -9 between check and write leaves nothing half done"
	KillAnywhere   Promise = "kill -9 at any moment loses no acknowledged write and no mark"
	MarkSurvives   Promise = "the mark survives a restart"
	SealCloses     Promise = "a seal refuses lower tokens before the first write"
	SealWaits      Promise = "after a seal or an advance nothing of an older write in flight takes effect"
	SealRefused    Promise = "a seal by a lower token is refused"
	SessionRefused Promise = "an equal token of another session is refused"
	SlipRefused    Promise = "a slip is refused, never stored, and the next honest write succeeds"
	AdvancePasses  Promise = "an operator advances the mark past a slip, never back"
	ForeignRefused Promise = "another deployment or group is refused"
	InvalidRefused Promise = "what is no stamp is refused"
	StrictOrder    Promise = "strict writes are accepted in order only"
	StrictRetry    Promise = "a strict retry has no effect and gets the stored answer"
	StrictClone    Promise = "a clone is refused"
	StrictSurvives Promise = "the answer to a strict write survives a restart"
	StrictKilled   Promise = "a strict write that was killed half way is made by its retry, once"
)

type promise struct {
	name  Promise
	check func(*check)
	needs []capability
}

// capability is an optional method of a Resource.
type capability struct {
	name string
	has  func(Resource) bool
}

func promises() []promise {
	var (
		mark    = capability{"Mark", func(r Resource) bool { return r.Mark != nil }}
		seal    = capability{"Seal", func(r Resource) bool { return r.Seal != nil }}
		advance = capability{"Advance", func(r Resource) bool { return r.Advance != nil }}
		strict  = capability{"WriteStrict", func(r Resource) bool { return r.WriteStrict != nil }}
	)
	return []promise{
		{FirstContact, firstContact, nil},
		{StaleRefused, staleRefused, nil},
		{OwnMark, ownMark, nil},
		{SlipRefused, slipRefused, nil},
		{AdvancePasses, advancePasses, []capability{mark, advance}},
		{ForeignRefused, foreignRefused, nil},
		{InvalidRefused, invalidRefused, nil},
		{SealCloses, sealCloses, []capability{seal}},
		{SealRefused, sealRefused, []capability{seal}},
		{SessionRefused, sessionRefused, []capability{seal}},
		{StrictOrder, strictOrder, []capability{strict}},
		{StrictRetry, strictRetry, []capability{strict}},
		{StrictClone, strictClone, []capability{strict}},
		{NotOvertaken, notOvertaken, nil},
		{SealWaits, sealWaits, []capability{seal}},
		{Atomic, atomic100, nil},
		{KillBetween, killBetween, nil},
		{KillAnywhere, killAnywhere, nil},
		{StrictKilled, strictKilled, []capability{strict}},
		{MarkSurvives, markSurvives, nil},
		{StrictSurvives, strictSurvives, []capability{strict}},
	}
}

// Promises lists every promise.
func Promises() []Promise {
	var all []Promise
	for _, p := range promises() {
		all = append(all, p.name)
	}
	return all
}

// Run checks every promise, one subtest each.
func Run(t *testing.T, sink Sink) {
	t.Helper()
	for _, p := range promises() {
		t.Run(string(p.name), func(t *testing.T) {
			skipped, seen := observe(t, sink, p)
			said, ok := suite.Verdict("the sink", seen, slices.Contains(sink.Broken, p.name))
			if said != "" {
				t.Log(said)
			}
			switch {
			case skipped != "":
				t.Skip(skipped)
			case !ok:
				t.Fail()
			}
		})
	}
}

// Check checks the promises, all of them if none is named, without failing t. It returns what
// was wrong with each broken one. Sinks use Run.
func Check(t testing.TB, sink Sink, only ...Promise) map[Promise]error {
	t.Helper()
	broken := make(map[Promise]error)
	for _, p := range promises() {
		if len(only) > 0 && !slices.Contains(only, p.name) {
			continue
		}
		if _, seen := observe(t, sink, p); seen != nil {
			broken[p.name] = seen
		}
	}
	return broken
}

// Breaks fails t unless the suite reports each of the promises as broken by the twin.
func Breaks(t testing.TB, twin Sink, promises ...Promise) {
	t.Helper()
	if len(promises) == 0 {
		t.Fatal("fencetest: which promise does the twin break?")
	}
	broken := Check(t, twin, promises...)
	for _, name := range promises {
		if seen := broken[name]; seen != nil {
			t.Logf("%s breaks %q: %s", twin.Name, name, firstLine(seen))
		} else {
			t.Errorf("%s is broken, but the suite saw it keep %q", twin.Name, name)
		}
	}
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// errSkip ends a check that does not apply.
type errSkip struct{ reason string }

// observe returns why a promise could not be checked, or what is wrong with it, or nothing if
// it is kept.
func observe(t testing.TB, sink Sink, p promise) (skipped string, wrong error) {
	t.Helper()
	if sink.Patience == 0 {
		sink.Patience = 30 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), sink.Patience)
	defer cancel()
	c := &check{t: t, sink: sink, ctx: ctx}
	defer c.closeAll()
	c.Observe(func() {
		defer func() {
			switch r := recover().(type) {
			case nil:
			case errSkip:
				skipped = r.reason
			default:
				panic(r)
			}
		}()
		c.where = sink.Create(t)
		c.Resource = c.open(c.where)
		for _, l := range p.needs {
			if !l.has(c.Resource) {
				panic(errSkip{"not checked: the sink has no " + l.name})
			}
		}
		p.check(c)
	})
	return skipped, c.Err()
}
