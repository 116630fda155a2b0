// Package suite has what the test kits share: a check that records errors and does not fail
// the test, because an engine may declare that it breaks a promise.
package suite

import (
	"errors"
	"fmt"
	"sync"
)

// Check checks one promise.
type Check struct {
	mu    sync.Mutex
	wrong []error
}

// giveUp unwinds a check that cannot continue.
type giveUp struct{}

// most bounds the recorded errors of one check.
const most = 20

// Errorf records an error. Any goroutine may call it.
func (c *Check) Errorf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.wrong) < most {
		c.wrong = append(c.wrong, fmt.Errorf(format, args...))
	}
}

// Fatalf records an error and ends the check. Only the goroutine of the check may call it.
func (c *Check) Fatalf(format string, args ...any) {
	c.Errorf(format, args...)
	panic(giveUp{})
}

// Must ends the check if err is not nil.
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

// Wrong returns the recorded errors.
func (c *Check) Wrong() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.wrong
}

// Err returns the recorded errors as one error, or nil.
func (c *Check) Err() error { return errors.Join(c.Wrong()...) }

// Verdict judges the result of a check. If the maker ("the sink") declares that it breaks the
// promise, the check must have seen that.
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
