package fencetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurehq/tenure/fence"
)

type betweenKey struct{}

// between returns a context with which a write calls f between its check and its effect.
func between(ctx context.Context, f func()) context.Context {
	return context.WithValue(ctx, betweenKey{}, f)
}

// Between is called by an adapter between the check and the effect of a write, with the context
// of the write. It returns at once unless the suite pauses that write.
func Between(ctx context.Context) {
	if f, ok := ctx.Value(betweenKey{}).(func()); ok {
		f()
	}
}

// hold pauses one write between its check and its effect.
type hold struct {
	once    sync.Once
	reached chan struct{}
	release chan struct{}
}

func newHold() *hold {
	return &hold{reached: make(chan struct{}), release: make(chan struct{})}
}

func (h *hold) in(ctx context.Context) context.Context {
	return between(ctx, func() {
		h.once.Do(func() { close(h.reached) })
		<-h.release
	})
}

// randomDelay sleeps for up to 5 ms in one write of four, so that writes overlap in many ways.
func randomDelay() {
	if rand.IntN(4) == 0 {
		time.Sleep(rand.N(5 * time.Millisecond))
	}
}

// noMoment ends a check of a sink that did not call Between.
func (c *check) noMoment() {
	if c.sink.NoMoment == "" {
		c.Fatalf("the sink never called Between: if there is no moment between check and effect, NoMoment says why")
	}
	panic(errSkip{"not checked: there is no moment between check and effect: " + c.sink.NoMoment})
}

// overtake is how long a second writer may try to pass a paused one. A sink with locks blocks
// it, so this must be short.
const overtake = 200 * time.Millisecond

// While one write is paused between its check and its effect, a write with another token
// arrives. The effects must be in the order of the tokens, whatever the sink does.
func notOvertaken(c *check) {
	for _, round := range []struct {
		name        string
		seen        fence.Token // the token that the sink has seen before; 0: none
		held, other fence.Token
	}{
		{"the old leader is held, the new one comes", 4, 4, 5},
		{"the new leader is held, the old one comes", 4, 5, 4},
		{"first contact is held, a newer leader comes", 0, 4, 5},
		{"first contact is held, an older leader comes", 0, 5, 4},
	} {
		where := c.sink.Create(c.t)
		c.Resource = c.open(where)
		if round.seen != 0 {
			c.accepts(at(round.seen), payloadOf(round.seen, 0, 0))
		}
		c.overtaken(round.name, where, round.held, round.other)
	}
}

func (c *check) overtaken(name, where string, heldToken, otherToken fence.Token) {
	second := c.open(where)
	h, held := c.holdWrite(name, heldToken)
	other := async(func() error { return second.Write(c.ctx, at(otherToken), payloadOf(otherToken, 1, 2)) })
	var err error
	select {
	case err = <-other:
		close(h.release)
	case <-time.After(overtake):
		close(h.release)
		err = <-other
	}
	c.settle(name, map[string]error{payloadOf(heldToken, 1, 1): <-held, payloadOf(otherToken, 1, 2): err})
}

func async(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// holdWrite starts a write and pauses it between check and effect.
func (c *check) holdWrite(name string, token fence.Token) (*hold, <-chan error) {
	h, r := newHold(), c.Resource
	held := async(func() error { return r.Write(h.in(c.ctx), at(token), payloadOf(token, 1, 1)) })
	select {
	case <-h.reached:
	case err := <-held:
		c.Must(name, err)
		c.noMoment()
	}
	return h, held
}

// When a seal returns, pending writes of older leaders have taken effect or never will, so
// the new leader can read. The same holds for an operator who advances the mark.
func sealWaits(c *check) {
	for _, seen := range []fence.Token{4, 0} {
		for _, by := range []struct {
			name string
			how  func(Resource) func(context.Context, fence.Stamp) error
		}{
			{"a seal", func(r Resource) func(context.Context, fence.Stamp) error { return r.Seal }},
			{"an advance", func(r Resource) func(context.Context, fence.Stamp) error { return r.Advance }},
		} {
			where := c.sink.Create(c.t)
			c.Resource = c.open(where)
			second := c.open(where)
			if by.how(second) == nil {
				continue
			}
			if seen != 0 {
				c.accepts(at(seen), payloadOf(seen, 0, 0))
			}
			c.closedBeside(fmt.Sprintf("%s beside a write, the mark was %d", by.name, seen), second, by.how(second))
		}
	}
}

func (c *check) closedBeside(name string, second Resource, closes func(context.Context, fence.Stamp) error) {
	h, held := c.holdWrite(name, 4)
	closed := async(func() error { return closes(c.ctx, at(5)) })
	early := false
	var err error
	select {
	case err = <-closed:
		early = true
	case <-time.After(overtake):
		close(h.release)
		err = <-closed
	}
	if err != nil && early {
		close(h.release)
	}
	c.Must(name, err)
	then, err := second.Effects(c.ctx)
	c.Must("effects", err)
	if early {
		close(h.release)
	}
	told := <-held
	if early && told == nil {
		c.Errorf("%s: it had returned, and then the write was acknowledged", name)
	}
	c.consistent(name, then, payloadOf(4, 1, 1), told)
	c.effects(name+": later", then...)
	c.marked(name, 5)
}

func payloadOf(token fence.Token, writer, n int) string {
	return fmt.Sprintf("%d by %d, %d", token, writer, n)
}

// settle compares the answers to the writers with the effects.
func (c *check) settle(name string, told map[string]error) {
	effects, err := c.Effects(c.ctx)
	c.Must("effects", err)
	c.inOrder(name, effects)
	for payload, err := range told {
		c.consistent(name, effects, payload, err)
	}
}

// consistent checks that an acknowledged write has one effect, and a refused one none.
func (c *check) consistent(name string, effects []string, payload string, told error) {
	times := 0
	for _, e := range effects {
		if e == payload {
			times++
		}
	}
	switch {
	case told == nil && times != 1:
		c.Errorf("%s: write %q was acknowledged and is there %d times", name, payload, times)
	case errors.Is(told, fence.ErrRefused) && times != 0:
		c.Errorf("%s: write %q was refused and is there: %w", name, payload, told)
	case told != nil && !errors.Is(told, fence.ErrRefused):
		c.Errorf("%s: write %q: %w", name, payload, told)
	}
}

// inOrder checks that the effects are in the order of their tokens.
func (c *check) inOrder(name string, effects []string) {
	var highest fence.Token
	var by string
	for _, e := range effects {
		var token fence.Token
		if _, err := fmt.Sscanf(e, "%d by", &token); err != nil {
			c.Fatalf("%s: an effect that nobody made: %q", name, e)
		}
		if token < highest {
			c.Errorf("%s: %q took effect after %q", name, e, by)
			return
		}
		highest, by = token, e
	}
}

// Many writers with two tokens write over several connections. Those with the lower token
// continue until they are refused, so the higher token must get through although the old
// leader does not stop.
func atomic100(c *check) {
	const (
		connections = 4
		writers     = 100 // half of them under each token
		each        = 3   // of the new leader's writers
		low, high   = fence.Token(4), fence.Token(5)
	)
	var (
		mu    sync.Mutex
		acked []string
		no    = make(map[string]error)

		lows    atomic.Int64
		started = make(chan struct{}) // enough was written with the lower token
		begin   sync.Once
		taken   atomic.Bool // a write of the higher token was acknowledged
	)
	note := func(payload string, err error) {
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			acked = append(acked, payload)
		} else {
			no[payload] = err
		}
	}
	var rs []Resource
	for range connections {
		rs = append(rs, c.open(c.where))
	}
	var all sync.WaitGroup
	for w := range writers {
		r := rs[w%connections]
		if w < writers/2 {
			all.Go(func() {
				for n := 0; ; n++ {
					late := taken.Load()
					payload := payloadOf(low, w, n)
					err := r.Write(between(c.ctx, randomDelay), at(low), payload)
					note(payload, err)
					if err != nil {
						begin.Do(func() { close(started) })
						return
					}
					if late {
						c.Errorf("write %q began after one of the higher token was acknowledged, and was accepted", payload)
						return
					}
					if lows.Add(1) == writers/2 {
						begin.Do(func() { close(started) })
					}
				}
			})
		} else {
			all.Go(func() {
				<-started
				for n := range each {
					payload := payloadOf(high, w, n)
					err := r.Write(c.ctx, at(high), payload)
					note(payload, err)
					if err != nil {
						return
					}
					taken.Store(true)
				}
			})
		}
	}
	all.Wait()
	if !taken.Load() {
		c.Errorf("the new leader never got through against the old one")
	}
	effects, err := c.Effects(c.ctx)
	c.Must("effects", err)
	c.inOrder("the crowd", effects)
	c.compare(effects, acked, no)
	if want := writers / 2 * each; countOf(acked, high) != want {
		c.Errorf("of the new leader's writes %d were acknowledged, want %d", countOf(acked, high), want)
	}
	c.marked("after the crowd", high)
}

func countOf(payloads []string, token fence.Token) (n int) {
	for _, p := range payloads {
		var of fence.Token
		if _, err := fmt.Sscanf(p, "%d by", &of); err == nil && of == token {
			n++
		}
	}
	return n
}

// compare records the differences between the effects and the answers to the writers.
func (c *check) compare(effects, acked []string, no map[string]error) {
	sorted, want := slices.Sorted(slices.Values(effects)), slices.Sorted(slices.Values(acked))
	if !slices.Equal(sorted, want) {
		c.Errorf("%d writes were acknowledged and %d took effect, or not the same ones", len(want), len(sorted))
	}
	for payload, err := range no {
		if !errors.Is(err, fence.ErrRefused) {
			c.Errorf("write %q: %w", payload, err)
		}
	}
}
