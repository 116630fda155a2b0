package store

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
)

const (
	maxRequestID     = 64
	maxRequestTTL    = time.Hour
	maxCoolDown      = 24 * time.Hour
	maxAttributeName = 128
)

// CheckBatch returns an ArgumentError unless the records may go into one Acquire.
func CheckBatch(l Caps, seen []Record) error {
	if len(seen) == 0 || len(seen) > l.Batch {
		return &ArgumentError{Field: "records", Value: len(seen), Rule: fmt.Sprintf("from 1 to %d in one acquire", l.Batch)}
	}
	for _, r := range seen {
		if err := CheckGroup(r.Group); err != nil {
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
		return &ArgumentError{Field: "records", Value: len(seen), Rule: "each group once in one acquire"}
	}
	return nil
}

// CheckTTL returns an ArgumentError unless a session may be opened with the TTL.
func CheckTTL(l Caps, ttl time.Duration) error {
	if ttl <= 0 || ttl > l.MaxTTL {
		return &ArgumentError{Field: "ttl", Value: ttl, Rule: fmt.Sprintf("more than 0 and at most %v", l.MaxTTL)}
	}
	return nil
}

const (
	minInstance = 16
	maxInstance = 64
	maxAttempt  = 64
)

// Validate returns an ArgumentError unless a session may be opened with the options.
func (o OpenOptions) Validate() error {
	switch n := len(o.Instance); {
	case n != 0 && (n < minInstance || n > maxInstance):
		return &ArgumentError{Field: "instance", Value: n, Rule: fmt.Sprintf("must have %d to %d characters", minInstance, maxInstance)}
	case o.Attempt != "" && n == 0:
		return &ArgumentError{Field: "attempt", Value: o.Attempt, Rule: "needs an instance"}
	case len(o.Attempt) > maxAttempt:
		return &ArgumentError{Field: "attempt", Value: len(o.Attempt), Rule: fmt.Sprintf("must have at most %d characters", maxAttempt)}
	}
	return o.Scope.Validate()
}

// InstanceDigest returns what stores keep of an instance. "" has none.
func InstanceDigest(instance string) string {
	if instance == "" {
		return ""
	}
	return digest("instance", instance)
}

// AttemptDigest names the attempt of a candidate's instance. "" has none.
func (o OpenOptions) AttemptDigest(candidate string) string {
	if o.Attempt == "" {
		return ""
	}
	return digest("attempt", candidate, o.Instance, o.Attempt)
}

func digest(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:16])
}

// SameOpening reports whether the session is what these arguments of Open ask for, and
// returns an ArgumentError if not.
func (s Session) SameOpening(c tenure.Candidate, o OpenOptions) error {
	same := s.Candidate.ID == c.ID && s.Candidate.Address == c.Address && s.Candidate.Priority == c.Priority &&
		maps.Equal(s.Candidate.Metadata, c.Metadata) && slices.Equal(s.Scope, o.Scope) && s.Fenced == o.Fenced && s.Successor == o.Successor
	if !same {
		return &ArgumentError{Field: "attempt", Value: o.Attempt, Rule: "names a living session that was opened with other arguments"}
	}
	return nil
}

// CheckEpoch returns an ArgumentError unless an epoch may be raised to it from
// what was the highest so far.
func CheckEpoch(to, above uint64) error {
	if to <= above || to > fence.MaxEpoch {
		return &ArgumentError{Field: "epoch", Value: to, Rule: fmt.Sprintf("above every epoch so far (%d) and at most %d", above, fence.MaxEpoch)}
	}
	return nil
}

// CheckToken returns an ArgumentError unless the token can be that of a grant.
func CheckToken(t fence.Token) error {
	if !t.Valid() {
		return &ArgumentError{Field: "token", Value: t, Rule: "from 1 to 2^53-1"}
	}
	return nil
}

// CheckRequestID returns an ArgumentError unless id may name a request.
func CheckRequestID(id string) error {
	if len(id) == 0 || len(id) > maxRequestID {
		return &ArgumentError{Field: "request id", Value: id, Rule: fmt.Sprintf("1 to %d bytes", maxRequestID)}
	}
	return nil
}

// Validate returns an ArgumentError unless the request may be asked.
func (r Request) Validate() error {
	if err := CheckRequestID(r.ID); err != nil {
		return err
	}
	switch {
	case r.Verb != StepDown && r.Verb != Transfer:
		return &ArgumentError{Field: "request verb", Value: string(r.Verb), Rule: fmt.Sprintf("%q or %q", StepDown, Transfer)}
	case r.Verb == Transfer && !ValidName(r.To):
		return &ArgumentError{Field: "request to", Value: r.To, Rule: "a transfer names the candidate that is to lead"}
	case r.To != "" && !ValidName(r.To):
		return &ArgumentError{Field: "request to", Value: r.To, Rule: "no candidate's name"}
	case r.Token > fence.MaxToken:
		return &ArgumentError{Field: "request token", Value: r.Token, Rule: "at most 2^53-1"}
	case r.TTL <= 0 || r.TTL > maxRequestTTL:
		return &ArgumentError{Field: "request ttl", Value: r.TTL, Rule: fmt.Sprintf("more than 0 and at most %v", maxRequestTTL)}
	case r.CoolDown < 0 || r.CoolDown > maxCoolDown:
		return &ArgumentError{Field: "request cool-down", Value: r.CoolDown, Rule: fmt.Sprintf("from 0 to %v", maxCoolDown)}
	case len(r.Reason) > MaxMetadata:
		return &ArgumentError{Field: "request reason", Value: r.Reason, Rule: fmt.Sprintf("at most %d bytes", MaxMetadata)}
	}
	return CheckGroup(r.Group)
}

// Validate returns an ArgumentError unless it is an answer.
func (a Answer) Validate() error {
	switch {
	case a.Outcome != Done && a.Outcome != Refused:
		return &ArgumentError{Field: "answer outcome", Value: string(a.Outcome), Rule: fmt.Sprintf("%q or %q", Done, Refused)}
	case len(a.Detail) > MaxMetadata:
		return &ArgumentError{Field: "answer detail", Value: a.Detail, Rule: fmt.Sprintf("at most %d bytes", MaxMetadata)}
	}
	return nil
}

// Validate returns an ArgumentError unless the name and the values may be
// stored.
func (a Attributes) Validate() error {
	ok := len(a.Name) > 0 && len(a.Name) <= maxAttributeName
	for _, c := range []byte(a.Name) {
		switch {
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '.', c == '_', c == '-', c == '/':
		default:
			ok = false
		}
	}
	if !ok {
		return &ArgumentError{Field: "attributes name", Value: a.Name, Rule: fmt.Sprintf("1 to %d of a-z 0-9 . _ - /", maxAttributeName)}
	}
	return CheckMetadata("attributes", a.Values)
}

// Size returns how many entries the page holds at most.
func (p Page) Size() (int, error) {
	if p.Limit < 0 || p.Limit > MaxPage {
		return 0, &ArgumentError{Field: "page limit", Value: p.Limit, Rule: fmt.Sprintf("from 1 to %d, or 0 for as many as that", MaxPage)}
	}
	if p.Limit == 0 {
		return MaxPage, nil
	}
	return p.Limit, nil
}
