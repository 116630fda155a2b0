package fencetest

import (
	"math"
	"strings"

	"github.com/tenurehq/tenure/fence"
)

// The first stamp is accepted, whatever its token.
func firstContact(c *check) {
	c.marked("fresh", 0)
	c.effects("fresh")
	c.accepts(at(7), "first")
	c.accepts(at(7), "second")
	c.effects("after two writes", "first", "second")
	c.marked("after two writes", 7)

	high := c.open(c.sink.Create(c.t))
	c.Must("first contact with the highest token", high.Write(c.ctx, at(fence.MaxToken), "first"))
}

func staleRefused(c *check) {
	c.accepts(at(3), "a")
	c.accepts(at(5), "b")
	stale(c, at(4), 5)
	stale(c, at(3), 5)
	stale(c, at(1), 5)
	c.accepts(at(5), "c")
	c.accepts(at(fence.NewToken(1, 6)), "d")
	stale(c, at(500), fence.NewToken(1, 6))
	c.effects("in the end", "a", "b", "c", "d")
	c.marked("in the end", fence.NewToken(1, 6))
}

// A high token on one resource does not affect another resource.
func ownMark(c *check) {
	other := c.open(c.sink.Create(c.t))
	c.accepts(at(5), "a")
	c.Must("write to another resource", other.Write(c.ctx, at(3), "b"))
	c.effects("of the first", "a")
	c.Resource = other
	c.effects("of the second", "b")
	c.marked("of the second", 3)
}

// One huge token, by mistake, must not lock every later leader out.
func slipRefused(c *check) {
	c.accepts(at(7), "a")
	for _, token := range []fence.Token{
		8 + fence.MaxJump, fence.NewToken(1, 8+fence.MaxJump), fence.NewToken(2, 8), fence.MaxToken,
	} {
		refuses[*fence.SlipError](c, at(token))
		if c.Seal != nil {
			refused[*fence.SlipError](c, "seal of a slip", func() error { return c.Seal(c.ctx, at(token)) })
		}
	}
	if c.WriteStrict != nil {
		refused[*fence.SlipError](c, "strict slip", func() error {
			_, err := c.WriteStrict(c.ctx, atSeq(fence.MaxToken, 1), "d", "refused")
			return err
		})
	}
	c.accepts(at(7), "b")
	c.accepts(at(8), "c")
	c.accepts(at(8+fence.MaxJump), "the furthest jump")
	c.accepts(at(fence.NewToken(1, 3)), "the next epoch")
	c.effects("in the end", "a", "b", "c", "the furthest jump", "the next epoch")
}

func advancePasses(c *check) {
	far := fence.NewToken(3, 9)
	c.accepts(at(7), "a")
	refuses[*fence.SlipError](c, at(far))
	c.Must("advance", c.Advance(c.ctx, at(far)))
	c.marked("advanced", far)
	stale(c, at(8), far)
	c.accepts(at(far), "b")
	refused[*fence.StaleError](c, "advance to a lower token", func() error { return c.Advance(c.ctx, at(9)) })
	refused[*fence.InvalidError](c, "advance to no token", func() error { return c.Advance(c.ctx, at(0)) })
	foreign := at(far + 1)
	foreign.Group = "mail"
	refused[*fence.ForeignError](c, "advance for another group", func() error { return c.Advance(c.ctx, foreign) })
	c.effects("in the end", "a", "b")

	c.Resource = c.open(c.sink.Create(c.t))
	c.Must("advance of a fresh resource", c.Advance(c.ctx, at(40)))
	stale(c, at(39), 40)
	c.accepts(at(41), "a")
}

func foreignRefused(c *check) {
	c.accepts(at(7), "a")
	for _, token := range []fence.Token{6, 7, 8} {
		for _, s := range []fence.Stamp{
			{Deployment: "staging", Group: group, Token: token},
			{Deployment: deployment, Group: "mail", Token: token},
		} {
			refuses[*fence.ForeignError](c, s)
			if c.Seal != nil {
				refused[*fence.ForeignError](c, "foreign seal", func() error { return c.Seal(c.ctx, s) })
			}
		}
	}
	c.accepts(at(8), "b")
	c.effects("in the end", "a", "b")
}

func invalidRefused(c *check) {
	for _, used := range []bool{false, true} {
		if used {
			c.accepts(at(7), "a")
		}
		for _, s := range []fence.Stamp{
			at(0), at(fence.MaxToken + 1), at(fence.MaxToken + 2), at(1 << 63), at(math.MaxUint64),
			{Group: group, Token: 8}, {Deployment: deployment, Token: 8},
			atSeq(8, fence.MaxSeq+1), atSeq(8, math.MaxUint64),
			{Deployment: deployment, Group: group, Token: 8, Session: strings.Repeat("h", fence.MaxSession+1)},
			{Deployment: deployment, Group: group, Token: 8, Session: "two words"},
		} {
			refuses[*fence.InvalidError](c, s)
			if c.Seal != nil {
				refused[*fence.InvalidError](c, "seal", func() error { return c.Seal(c.ctx, s) })
			}
		}
	}
	c.accepts(at(8), "b")
	c.effects("in the end", "a", "b")
}

// A sealed sink refuses the older leader before the newer one has written.
func sealCloses(c *check) {
	c.accepts(at(4), "a")
	c.Must("seal", c.Seal(c.ctx, at(5)))
	c.marked("sealed", 5)
	stale(c, at(4), 5)
	c.Must("seal once more", c.Seal(c.ctx, at(5)))
	c.accepts(at(5), "b")
	c.Must("seal after a write", c.Seal(c.ctx, at(5)))
	c.effects("in the end", "a", "b")

	c.Resource = c.open(c.sink.Create(c.t))
	c.Must("seal of a fresh resource", c.Seal(c.ctx, at(5)))
	c.marked("sealed fresh", 5)
	stale(c, at(4), 5)
	c.accepts(at(5), "a")
}

func sealRefused(c *check) {
	c.accepts(at(5), "a")
	refused(c, "seal by a lower token", func() error { return c.Seal(c.ctx, at(4)) }, func(e *fence.StaleError) {
		if e.Mark.Token != 5 {
			c.Errorf("the refusal of a seal says that the mark is %d, want 5", e.Mark.Token)
		}
	})
	c.accepts(at(5), "b")
	c.Must("seal", c.Seal(c.ctx, at(6)))
	refused[*fence.StaleError](c, "seal below a seal", func() error { return c.Seal(c.ctx, at(5)) })
	c.effects("in the end", "a", "b")
}

// A store that lost data grants one token to two sessions. Only the session that comes first
// may use it.
func sessionRefused(c *check) {
	of := func(session string, token fence.Token) fence.Stamp {
		s := at(token)
		s.Session = session
		return s
	}
	other := func(token fence.Token) {
		refuses[*fence.CloneError](c, of("other", token))
		refused[*fence.CloneError](c, "seal by another session", func() error { return c.Seal(c.ctx, of("other", token)) })
		if c.WriteStrict != nil {
			s := of("other", token)
			s.Seq = 9
			refusesStrict[*fence.CloneError](c, s, "d")
		}
	}
	c.Must("seal", c.Seal(c.ctx, of("first", 5)))
	other(5)
	c.Must("seal once more", c.Seal(c.ctx, of("first", 5)))
	c.accepts(of("first", 5), "a")
	c.accepts(at(5), "b") // without a session
	other(5)
	c.restart()
	other(5)

	// A write raises the mark like a seal.
	c.accepts(of("other", 6), "c")
	refuses[*fence.CloneError](c, of("first", 6))
	// The same session may hold a later token.
	c.accepts(of("other", 7), "d")
	refuses[*fence.CloneError](c, of("first", 7))

	// A mark without a session takes the session of the first stamp that has one.
	c.accepts(at(8), "e")
	c.Must("seal of a mark without a session", c.Seal(c.ctx, of("first", 8)))
	other(8)
	c.accepts(at(9), "f")
	c.accepts(of("first", 9), "g")
	other(9)
	if c.WriteStrict != nil {
		s := of("first", 10)
		s.Seq = 1
		_, err := c.WriteStrict(c.ctx, s, "d", "h")
		c.Must("strict write", err)
		other(10)
		s.Session, s.Seq = "", 2
		_, err = c.WriteStrict(c.ctx, s, "d", "i")
		c.Must("strict write without a session", err)
		other(10)
		c.effects("in the end", "a", "b", "c", "d", "e", "f", "g", "h", "i")
		return
	}
	c.effects("in the end", "a", "b", "c", "d", "e", "f", "g")
}

// Another process makes the first writes if possible: data in this process's memory would
// outlive its connections.
func markSurvives(c *check) {
	c.closeAll()
	failed := ""
	_, ok := c.hasChild(childTask{From: 4, To: 5, Loop: true}, func(line string) bool {
		answer, done := strings.CutPrefix(line, saysDone)
		if done && answer != "ok" {
			failed = answer
		}
		return done
	})
	switch {
	case failed != "":
		c.Fatalf("the child's write: %s", failed)
	case !ok:
		c.Resource = c.open(c.where)
		c.accepts(at(4), "4")
		c.accepts(at(5), "5")
	}
	c.restart()
	c.marked("after a restart", 5)
	c.effects("after a restart", "4", "5")
	stale(c, at(4), 5)
	c.accepts(at(5), "c")
	if c.Seal != nil {
		c.Must("seal", c.Seal(c.ctx, at(6)))
		c.restart()
		c.marked("sealed, after a restart", 6)
		stale(c, at(5), 6)
		c.accepts(at(6), "d")
	}
}
