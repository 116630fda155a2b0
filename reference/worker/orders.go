package worker

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/tenurehq/tenure/reference/api"
)

// Accepted is the answer to POST /orders: all of them are on disk. Duplicates are those that the
// worker has had before.
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

// orderError: an order is invalid.
type orderError struct {
	index int
	name  string
	rule  string
}

func (e *orderError) Error() string {
	return fmt.Sprintf("order %d %q: %s; none was accepted", e.index, e.name, e.rule)
}

// Validate returns why a worker with the default limits would refuse orders whenever they are
// sent.
func Validate(o api.Orders) error { return validate(o, maxStanding) }

func validate(o api.Orders, mostStanding int) error {
	if len(o.Orders) > maxOrders {
		return &orderError{index: maxOrders, rule: fmt.Sprintf("there are %d orders, at most %d are accepted at once", len(o.Orders), maxOrders)}
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
	if len(names) > mostStanding {
		return tooManyStanding(o, len(names), mostStanding)
	}
	return nil
}

func tooManyStanding(o api.Orders, standing, most int) error {
	last := len(o.Orders) - 1
	name := o.Orders[last].Name
	return &orderError{index: last, name: name[:min(len(name), 64)], rule: fmt.Sprintf("there would be %d standing orders, at most %d are allowed", standing, most)}
}

// broken is the rule that an order breaks; empty: none.
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
		return "job and at_ms: an order that is done once must have them"
	}
	if _, err := payloadOf(o); err != nil {
		return "payload: " + err.Error()
	}
	return ""
}
