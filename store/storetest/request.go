package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/tenurehq/tenure/store"
)

func (c *check) request(id string) store.Request {
	return store.Request{
		ID: id, Verb: store.Transfer, Group: c.group("g"), Token: 7, To: "b",
		Reason: "maintenance", CoolDown: time.Minute, TTL: time.Minute,
	}
}

// waiting returns the requests that the next keep-alive returns.
func (c *check) waiting(id store.SessionID) []store.Request {
	beat, err := c.store.KeepAlive(c.ctx, id)
	c.Must("keep-alive", err)
	return beat.Requests
}

// Requests come with the owner's beats, in the order asked and as they were
// asked, however often they were, until they are answered; the asker reads the
// answer.
func requestsArrive(c *check) {
	asker := c.engine.Open(c.t)
	a, b := c.session("a"), c.session("b")
	first, second := c.request("z-first"), c.request("a-second")
	second.Verb, second.To, second.Token = store.StepDown, "", 0
	for range 2 {
		c.Must("ask", asker.Ask(c.ctx, a, first))
	}
	c.Must("ask", asker.Ask(c.ctx, a, second))
	again := first
	again.Reason = "another"
	c.Must("ask again with the same id", asker.Ask(c.ctx, a, again))
	for range 2 {
		if got, want := c.waiting(a), []store.Request{first, second}; !slices.Equal(got, want) {
			c.Errorf("the beat brings %+v, want %+v", got, want)
		}
	}
	if got := c.waiting(b); len(got) != 0 {
		c.Errorf("a beat of another session brings %+v", got)
	}

	answer, err := asker.Answered(c.ctx, a, first.ID)
	c.Must("Answered before the answer", err)
	if answer != (store.Answer{}) {
		c.Errorf("a request that waits is answered: %+v", answer)
	}
	c.wants("answered, never asked", errOf(asker.Answered(c.ctx, a, "never-asked")), store.ErrNotFound)
	c.wants("answer, never asked", c.store.Answer(c.ctx, a, "never-asked", store.Answer{Outcome: store.Done}), store.ErrNotFound)

	want := store.Answer{Outcome: store.Refused, Detail: "busy"}
	for range 2 {
		c.Must("answer", c.store.Answer(c.ctx, a, first.ID, want))
	}
	for range 2 {
		answer, err = asker.Answered(c.ctx, a, first.ID)
		c.Must("answered", err)
		if answer != want {
			c.Errorf("the answer reads %+v, want %+v", answer, want)
		}
	}
	c.Must("ask again when answered", asker.Ask(c.ctx, a, first))
	if got, want := c.waiting(a), []store.Request{second}; !slices.Equal(got, want) {
		c.Errorf("after the answer the beat brings %+v, want %+v", got, want)
	}

	c.close(b)
	c.wants("ask of a dead session", asker.Ask(c.ctx, b, first), store.ErrSessionDead)
	if _, err = asker.Answered(c.ctx, b, first.ID); !store.Definite(err) {
		c.Errorf("answered, of a dead session: %v, want a definite answer", err)
	}
}

// A request is gone when its time is up, answered or not, and not before; no
// more wait than are allowed, and room is made by an answer.
func requestsEnd(c *check) {
	a := c.session("a")
	short, answered := c.request("short"), c.request("answered")
	short.TTL, answered.TTL = c.engine.TTL, c.engine.TTL
	sent := time.Now()
	c.Must("ask", c.store.Ask(c.ctx, a, short))
	c.Must("ask", c.store.Ask(c.ctx, a, answered))
	err := c.store.Answer(c.ctx, a, answered.ID, store.Answer{Outcome: store.Done})
	if err != nil && time.Since(sent) < c.engine.TTL {
		c.Errorf("answer in time: %w", err)
	}
	c.eventually("waiting for a request to expire", func() error {
		waiting := c.waiting(a)
		now := time.Now()
		if len(waiting) > 0 {
			return fmt.Errorf("the beat brings %+v", waiting)
		}
		if now.Before(sent.Add(short.TTL - short.TTL/50)) {
			c.Errorf("a request was gone %v after it was asked, with a TTL of %v", now.Sub(sent), short.TTL)
		}
		return nil
	})
	for _, r := range []store.Request{short, answered} {
		c.eventually("waiting for an answer to expire", func() error {
			if got, err := c.store.Answered(c.ctx, a, r.ID); err == nil {
				return fmt.Errorf("request %q still answers %+v", r.ID, got)
			} else {
				c.wants("answered, expired", err, store.ErrNotFound)
			}
			return nil
		})
	}

	for i := range store.MaxRequests {
		c.Must("ask", c.store.Ask(c.ctx, a, c.request(fmt.Sprintf("r%02d", i))))
	}
	if n := len(c.waiting(a)); n != store.MaxRequests {
		c.Errorf("the beat brings %d requests of %d", n, store.MaxRequests)
	}
	c.wants("one request too many", c.store.Ask(c.ctx, a, c.request("more")), store.ErrBusy)
	c.wants("one that waits already", c.store.Ask(c.ctx, a, c.request("r00")), nil)
	c.Must("answer", c.store.Answer(c.ctx, a, "r00", store.Answer{Outcome: store.Done}))
	c.wants("one more after an answer", c.store.Ask(c.ctx, a, c.request("more")), nil)
}
