package worker

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/tenurehq/tenure/reference/api"
)

// Orders is the body of POST /orders. Replace makes the standing orders those given;
// without it they are added to, or replaced by name.
type Orders struct {
	Replace bool        `json:"replace,omitempty"`
	Orders  []api.Order `json:"orders"`
}

// Accepted is the answer to POST /orders: all of them are on the disk. Duplicates are
// those that the worker had had before.
type Accepted struct {
	Accepted   int `json:"accepted"`
	Duplicates int `json:"duplicates"`
}

const (
	maxOrders   = 1000
	maxStanding = 100
	maxName     = 256
	maxPayload  = 64 << 10
	minEvery    = 10 * time.Millisecond
	maxEvery    = 24 * time.Hour
)

// orderError: an order is none that could be done at any time.
type orderError struct {
	index int
	name  string
	rule  string
}

func (e *orderError) Error() string {
	return fmt.Sprintf("order %d %q: %s: none was accepted", e.index, e.name, e.rule)
}

// Validate says which order a worker with the default limits would refuse for what it
// is, or that too many are standing ones: sent again, they would be refused again.
func (o Orders) Validate() error {
	if err := o.validate(); err != nil {
		return err
	}
	if n := o.standing(); n > maxStanding {
		return o.tooManyStand(n, maxStanding)
	}
	return nil
}

// standing is how many of them are standing orders.
func (o Orders) standing() (n int) {
	for _, order := range o.Orders {
		if order.EveryMS > 0 {
			n++
		}
	}
	return n
}

func (o Orders) tooManyStand(standing, most int) error {
	last := len(o.Orders) - 1
	name := o.Orders[last].Name
	return &orderError{index: last, name: name[:min(len(name), 64)], rule: fmt.Sprintf("%d would stand, at most %d may", standing, most)}
}

func (o Orders) validate() error {
	if len(o.Orders) > maxOrders {
		return &orderError{index: maxOrders, rule: fmt.Sprintf("there are %d orders, at most %d are taken at once", len(o.Orders), maxOrders)}
	}
	names := make(map[string]bool)
	for i, order := range o.Orders {
		rule := broken(order)
		if order.EveryMS > 0 && rule == "" {
			if names[order.Name] {
				rule = "the name is used twice"
			}
			names[order.Name] = true
		}
		if rule != "" {
			return &orderError{index: i, name: order.Name[:min(len(order.Name), 64)], rule: rule}
		}
	}
	return nil
}

// broken is the rule that an order breaks.
func broken(o api.Order) string {
	text := func(s string) bool { return s != "" && len(s) <= maxName && utf8.ValidString(s) }
	switch {
	case !text(o.Name):
		return fmt.Sprintf("name: 1 to %d bytes of UTF-8", maxName)
	case !slices.Contains([]string{RunCount, RunLog, RunSleep}, o.Run):
		return fmt.Sprintf("run: %q is none of %s, %s, %s", o.Run[:min(len(o.Run), 64)], RunCount, RunLog, RunSleep)
	case len(o.Payload) > maxPayload || len(o.Payload) > 0 && !json.Valid(o.Payload):
		return fmt.Sprintf("payload: JSON of at most %d bytes", maxPayload)
	case o.EveryMS != 0 && (o.EveryMS > maxEvery.Milliseconds() || o.EveryMS < minEvery.Milliseconds()):
		return fmt.Sprintf("every_ms: from %d to %d", minEvery.Milliseconds(), maxEvery.Milliseconds())
	case o.EveryMS != 0 && (o.Job != "" || o.AtMS != 0):
		return "every_ms: a standing order has no job and no at_ms"
	case o.EveryMS == 0 && (!text(o.Job) || o.AtMS < 1):
		return "job and at_ms: an order that is done once is known by them"
	}
	if _, err := payloadOf(o); err != nil {
		return "payload: " + err.Error()
	}
	return ""
}
