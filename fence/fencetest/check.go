package fencetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/suite"
)

// check checks one promise on a fresh resource, which it has opened.
type check struct {
	suite.Check
	Resource

	t      testing.TB
	sink   Sink
	ctx    context.Context
	where  string
	opened []Resource
}

const (
	deployment = "fencetest"
	group      = "billing"
)

func at(token fence.Token) fence.Stamp { return atSeq(token, 0) }

func atSeq(token fence.Token, seq uint64) fence.Stamp {
	return fence.Stamp{Deployment: deployment, Group: group, Token: token, Seq: seq}
}

// open opens another connection, as another process would.
func (c *check) open(where string) Resource {
	r, err := c.sink.Open(where)
	c.Must("open", err)
	c.opened = append(c.opened, r)
	return r
}

func (c *check) closeAll() {
	for _, r := range c.opened {
		if r.Close != nil {
			if err := r.Close(); err != nil {
				c.t.Logf("close: %v", err)
			}
		}
	}
	c.opened = nil
}

// restart closes every connection, restarts the server of the resource, and connects again.
func (c *check) restart() {
	c.closeAll()
	if c.sink.Restart != nil {
		c.sink.Restart(c.t)
	}
	c.Resource = c.open(c.where)
}

// accepts makes a write that must be accepted.
func (c *check) accepts(s fence.Stamp, payload string) {
	c.Must(fmt.Sprintf("write %q, %s", payload, s), c.Write(c.ctx, s, payload))
}

// effects requires exactly these effects.
func (c *check) effects(what string, want ...string) {
	got, err := c.Effects(c.ctx)
	c.Must("effects", err)
	if !slices.Equal(got, want) {
		c.Errorf("%s: the effects are %q, want %q", what, got, want)
	}
}

// marked requires a mark with this token and the right owner.
func (c *check) marked(what string, token fence.Token) {
	if c.Mark == nil {
		return
	}
	m, err := c.Mark(c.ctx)
	c.Must("mark", err)
	if m.Token != token || token != 0 && (m.Deployment != deployment || m.Group != group) {
		c.Errorf("%s: the mark is %+v, want token %d of %s/%s", what, m, token, deployment, group)
	}
}

// refuses makes a write that must be refused with an error of type E and must change nothing.
func refuses[E error](c *check, s fence.Stamp, also ...func(E)) {
	refused(c, fmt.Sprintf("write, %s", s), func() error {
		return c.Write(c.ctx, s, "refused")
	}, also...)
}

// refused calls do and requires that it fails with an error of type E and changes nothing.
func refused[E error](c *check, what string, do func() error, also ...func(E)) {
	effects, err := c.Effects(c.ctx)
	c.Must("effects", err)
	var mark fence.Mark
	if c.Mark != nil {
		mark, err = c.Mark(c.ctx)
		c.Must("mark", err)
	}
	err = do()
	var e E
	if errors.As(err, &e) && errors.Is(err, fence.ErrRefused) {
		for _, f := range also {
			f(e)
		}
	} else {
		c.Errorf("%s: answered %v, want a refusal of type %T", what, err, e)
	}
	c.effects(what+": refused", effects...)
	if c.Mark != nil {
		now, err := c.Mark(c.ctx)
		c.Must("mark", err)
		if now != mark {
			c.Errorf("%s: the refusal took the mark from %+v to %+v", what, mark, now)
		}
	}
}

// stale makes a write that must be refused as stale, with an error that has both tokens.
func stale(c *check, s fence.Stamp, mark fence.Token) {
	refuses(c, s, func(e *fence.StaleError) {
		if e.Stamp.Token != s.Token || e.Mark.Token != mark {
			c.Errorf("write, %s: the refusal says token %d against mark %d, want %d against %d", s, e.Stamp.Token, e.Mark.Token, s.Token, mark)
		}
	})
}
