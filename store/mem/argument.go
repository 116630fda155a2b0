package mem

import (
	"fmt"
	"time"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
)

const (
	maxRequestID   = 64
	maxRequestTTL  = time.Hour
	maxCoolDown    = 24 * time.Hour
	maxAttributeID = 128
)

func (s *State) checkBatch(seen []lease.Record) error {
	if len(seen) == 0 || len(seen) > s.limits.Batch {
		return &lease.ArgumentError{Field: "records", Value: len(seen), Rule: fmt.Sprintf("from 1 to %d in one acquire", s.limits.Batch)}
	}
	for _, r := range seen {
		if err := lease.CheckGroup(r.Group); err != nil {
			return err
		}
	}
	if len(seen) == 1 {
		return nil
	}
	once := make(map[string]struct{}, len(seen))
	for _, r := range seen {
		once[r.Group] = struct{}{}
	}
	if len(once) != len(seen) {
		return &lease.ArgumentError{Field: "records", Value: len(seen), Rule: "each group once in one acquire"}
	}
	return nil
}

func checkRequest(r lease.Request) error {
	switch {
	case len(r.ID) == 0 || len(r.ID) > maxRequestID:
		return &lease.ArgumentError{Field: "request id", Value: r.ID, Rule: fmt.Sprintf("1 to %d bytes", maxRequestID)}
	case r.Verb != lease.StepDown && r.Verb != lease.Transfer:
		return &lease.ArgumentError{Field: "request verb", Value: string(r.Verb), Rule: fmt.Sprintf("%q or %q", lease.StepDown, lease.Transfer)}
	case r.Verb == lease.Transfer && !lease.ValidName(r.To):
		return &lease.ArgumentError{Field: "request to", Value: r.To, Rule: "a transfer names the candidate that is to lead"}
	case r.To != "" && !lease.ValidName(r.To):
		return &lease.ArgumentError{Field: "request to", Value: r.To, Rule: "no candidate's name"}
	case r.Token > fence.MaxToken:
		return &lease.ArgumentError{Field: "request token", Value: r.Token, Rule: "at most 2^53-1"}
	case r.TTL <= 0 || r.TTL > maxRequestTTL:
		return &lease.ArgumentError{Field: "request ttl", Value: r.TTL, Rule: fmt.Sprintf("more than 0 and at most %v", maxRequestTTL)}
	case r.CoolDown < 0 || r.CoolDown > maxCoolDown:
		return &lease.ArgumentError{Field: "request cool-down", Value: r.CoolDown, Rule: fmt.Sprintf("from 0 to %v", maxCoolDown)}
	case len(r.Reason) > lease.MaxMetadata:
		return &lease.ArgumentError{Field: "request reason", Value: r.Reason, Rule: fmt.Sprintf("at most %d bytes", lease.MaxMetadata)}
	}
	return lease.CheckGroup(r.Group)
}

func checkAnswer(a lease.Answer) error {
	switch {
	case a.Outcome != lease.Done && a.Outcome != lease.Refused:
		return &lease.ArgumentError{Field: "answer outcome", Value: string(a.Outcome), Rule: fmt.Sprintf("%q or %q", lease.Done, lease.Refused)}
	case len(a.Detail) > lease.MaxMetadata:
		return &lease.ArgumentError{Field: "answer detail", Value: a.Detail, Rule: fmt.Sprintf("at most %d bytes", lease.MaxMetadata)}
	}
	return nil
}

func checkAttributes(a lease.Attributes) error {
	ok := len(a.Name) > 0 && len(a.Name) <= maxAttributeID
	for _, c := range []byte(a.Name) {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '.', c == '_', c == '-', c == '/':
		default:
			ok = false
		}
	}
	if !ok {
		return &lease.ArgumentError{Field: "attributes name", Value: a.Name, Rule: fmt.Sprintf("1 to %d of a-z 0-9 . _ - /", maxAttributeID)}
	}
	return lease.CheckMetadata("attributes", a.Values)
}

func checkEpoch(to, above uint64) error {
	if to <= above || to > fence.MaxEpoch {
		return &lease.ArgumentError{Field: "epoch", Value: to, Rule: fmt.Sprintf("above every epoch so far (%d) and at most %d", above, fence.MaxEpoch)}
	}
	return nil
}

// pageLimit returns how many a page holds.
func pageLimit(p lease.Page) (int, error) {
	if p.Limit < 0 || p.Limit > lease.MaxPage {
		return 0, &lease.ArgumentError{Field: "page limit", Value: p.Limit, Rule: fmt.Sprintf("from 1 to %d, or 0 for as many as that", lease.MaxPage)}
	}
	if p.Limit == 0 {
		return lease.MaxPage, nil
	}
	return p.Limit, nil
}
