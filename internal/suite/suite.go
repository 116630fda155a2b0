// Package suite is what the test kits share: a check that notes what is wrong and does not
// fail the test, because an engine may announce that it breaks a promise.
package suite

import (
	"errors"
	"fmt"
	"sync"
)

// Check is one promise being checked.
type Check struct {
	mu    sync.Mutex
	wrong []error
}

// giveUp unwinds a check that cannot go on.
type giveUp struct{}

// most bounds what is noted of one check.
const most = 20

// Errorf notes what is wrong; any goroutine may.
func (c *Check) Errorf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.wrong) < most {
		c.wrong = append(c.wrong, fmt.Errorf(format, args...))
	}
}

// Fatalf also ends the check; only its own goroutine may.
func (c *Check) Fatalf(format string, args ...any) {
	c.Errorf(format, args...)
	panic(giveUp{})
}

// Must ends the check with an error.
func (c *Check) Must(what string, err error) {
	if err != nil {
		c.Fatalf("%s: %w", what, err)
	}
}

// Observe runs the check, to its end or until it gives up.
func (c *Check) Observe(check func()) {
	defer func() {
		if r := recover(); r != nil && r != any(giveUp{}) {
			panic(r)
		}
	}()
	check()
}

// Wrong is what was noted.
func (c *Check) Wrong() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wrong
}

// Err is what was noted in one error, nil if nothing was.
func (c *Check) Err() error { return errors.Join(c.Wrong()...) }

// Verdict turns around what was seen of a promise that its maker ("the sink") says it cannot
// keep.
func Verdict(maker string, seen error, broken bool) (said string, ok bool) {
	switch {
	case broken && seen == nil:
		return maker + " says that it breaks this promise, but it kept it", false
	case broken:
		return "broken, as " + maker + " says: " + seen.Error(), true
	case seen != nil:
		return seen.Error(), false
	}
	return "", true
}
