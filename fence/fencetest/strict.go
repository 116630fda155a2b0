package fencetest

import (
	"fmt"
	"sync"

	"github.com/tenurehq/tenure/fence"
)

// strictly makes a strict write that must be accepted; its digest is its payload.
func (c *check) strictly(token fence.Token, seq uint64, payload string) (answer string) {
	answer, err := c.WriteStrict(c.ctx, atSeq(token, seq), "digest of "+payload, payload)
	c.Must(fmt.Sprintf("strict write %q, %s", payload, atSeq(token, seq)), err)
	return answer
}

func refusesStrict[E error](c *check, s fence.Stamp, digest string) {
	refused[E](c, fmt.Sprintf("strict write, %s", s), func() error {
		_, err := c.WriteStrict(c.ctx, s, digest, "refused")
		return err
	})
}

func strictOrder(c *check) {
	refusesStrict[*fence.InvalidError](c, atSeq(4, 0), "d")
	c.strictly(4, 1, "a")
	c.strictly(4, 2, "b")
	c.strictly(4, 5, "c")
	refusesStrict[*fence.StaleError](c, atSeq(4, 4), "d")
	refusesStrict[*fence.StaleError](c, atSeq(4, 1), "digest of a")
	refusesStrict[*fence.InvalidError](c, atSeq(4, 0), "d")
	c.strictly(5, 1, "d")
	refusesStrict[*fence.StaleError](c, atSeq(4, 6), "d")
	refusesStrict[*fence.StaleError](c, atSeq(4, 5), "digest of c")
	c.effects("in the end", "a", "b", "c", "d")
	c.marked("in the end", 5)
}

// A writer that lost the answer retries, perhaps several times at once.
func strictRetry(c *check) {
	first := c.strictly(4, 1, "a")
	retry := func(what string, seq uint64, digest, want string) {
		// The sink must ignore the payload of a retry; a different payload shows whose answer comes back.
		got, err := c.WriteStrict(c.ctx, atSeq(4, seq), digest, "payload of the retry")
		c.Must(what, err)
		if got != want {
			c.Errorf("%s: answered %q, and %q the first time", what, got, want)
		}
	}
	retry("retry", 1, "digest of a", first)
	retry("second retry", 1, "digest of a", first)
	if c.Seal != nil {
		c.Must("seal", c.Seal(c.ctx, at(4)))
		retry("retry after a seal of the same term", 1, "digest of a", first)
	}
	second := c.strictly(4, 2, "b")
	retry("retry of the second", 2, "digest of b", second)
	c.effects("after retries", "a", "b")

	answers := make([]string, 20)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			answer, err := c.WriteStrict(c.ctx, atSeq(4, 3), "digest of c", "c")
			if err != nil {
				c.Errorf("one of many equal writes: %w", err)
			}
			answers[i] = answer
		})
	}
	all.Wait()
	for _, answer := range answers {
		if answer != answers[0] {
			c.Errorf("many equal writes at once were answered %q", answers)
			break
		}
	}
	c.effects("after many equal writes at once", "a", "b", "c")
}

func strictClone(c *check) {
	c.strictly(4, 1, "a")
	refusesStrict[*fence.CloneError](c, atSeq(4, 1), "another digest")
	refusesStrict[*fence.CloneError](c, atSeq(4, 1), "")
	c.strictly(4, 2, "b")
	c.effects("in the end", "a", "b")
}

func strictSurvives(c *check) {
	first := c.strictly(4, 1, "a")
	c.restart()
	c.effects("after a restart", "a")
	if again := c.strictly(4, 1, "a"); again != first {
		c.Errorf("retry after a restart: answered %q, and %q before", again, first)
	}
	refusesStrict[*fence.CloneError](c, atSeq(4, 1), "another digest")
	c.strictly(4, 2, "b")
	c.effects("in the end", "a", "b")
}
