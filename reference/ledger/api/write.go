package api

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tenurehq/tenure/fence"
)

// Batch is the writes of one leader to one resource: all are made, or none.
//
// A stamp with a seq is strict: such batches are accepted in order only, and a retry with the
// same digest gets the answer to the first try. As JSON it is the body of a request.
type Batch struct {
	Resource string      `json:"-"`
	Stamp    fence.Stamp `json:"-"`
	// Holder is who writes, for the list of refused writes. Optional.
	Holder string `json:"-"`
	// Seen is the identity of the ledger that the writer has seen. Optional.
	Seen Identity `json:"-"`
	// Digest identifies the content of a strict batch. Default: that of Writes.
	Digest string  `json:"digest,omitempty"`
	Writes []Write `json:"writes"`
}

// Write is one write: exactly one of the fields is set.
type Write struct {
	Tick       *TickWrite       `json:"tick,omitempty"`
	Checkpoint *CheckpointWrite `json:"checkpoint,omitempty"`
	Record     *RecordWrite     `json:"record,omitempty"`
	Sequence   *SequenceWrite   `json:"sequence,omitempty"`
	Job        *JobWrite        `json:"job,omitempty"`
	Fire       *FireWrite       `json:"fire,omitempty"`
	Delivered  *DeliveredWrite  `json:"delivered,omitempty"`
}

// TickWrite adds an entry to the log of the resource.
type TickWrite struct {
	// Key, if given, identifies the tick: a second one with the same key is not added, and the
	// answer names the first.
	Key     string          `json:"key,omitempty"`
	Payload json.RawMessage `json:"payload,omitempty"`
}

// CheckpointWrite replaces a checkpoint.
type CheckpointWrite struct {
	Name  string          `json:"name"`
	Value json.RawMessage `json:"value"`
}

// RecordWrite replaces a record.
type RecordWrite struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
	// Version, if given, is the version that the record must have; 0: it must not exist.
	Version *uint64 `json:"version,omitempty"`
}

// SequenceWrite takes a range of numbers: the one that the leader proposes, which must follow
// the last number, or the next N.
type SequenceWrite struct {
	Name  string `json:"name"`
	First uint64 `json:"first,omitempty"`
	Last  uint64 `json:"last,omitempty"`
	N     uint64 `json:"n,omitempty"`
}

// Answer is the outcome of a batch.
type Answer struct {
	Resource string      `json:"resource"`
	Token    fence.Token `json:"token"`
	Seq      uint64      `json:"seq,omitempty"`
	// AtMS is the ledger's wall clock when the batch was committed; of a retry, when it was
	// first committed.
	AtMS int64 `json:"at_ms"`
	// Outcomes are in the order of the writes.
	Outcomes []Outcome `json:"outcomes"`
	// Ledger is the ledger that answered, with its revision after the batch.
	Ledger Identity `json:"-"`
	// Retried: the batch was made before, and this is the answer from then.
	Retried bool `json:"-"`
}

// Outcome is the outcome of one write.
type Outcome struct {
	Tick       *TickOutcome      `json:"tick,omitempty"`
	Checkpoint *VersionOutcome   `json:"checkpoint,omitempty"`
	Record     *VersionOutcome   `json:"record,omitempty"`
	Sequence   *Range            `json:"sequence,omitempty"`
	Job        *JobOutcome       `json:"job,omitempty"`
	Fire       *FireOutcome      `json:"fire,omitempty"`
	Delivered  *DeliveredOutcome `json:"delivered,omitempty"`
}

// TickOutcome is the number of the tick in the log. The ticks of a resource are numbered from 1.
type TickOutcome struct {
	N uint64 `json:"n"`
	// Duplicate: tick N has the same key; none was added.
	Duplicate bool `json:"duplicate,omitempty"`
}

// VersionOutcome is the new version of a checkpoint or record.
type VersionOutcome struct {
	Version uint64 `json:"version"`
}

// Range is numbers that only one caller has.
type Range struct {
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
}

// Limits of one request.
const (
	MaxName   = 256  // bytes of a name or key
	MaxWrites = 2000 // of one batch: a tick, its checkpoint and a thousand firings fit in
	MaxValue  = 1 << 20
	MaxRange  = 1_000_000 // numbers at once
	// MaxSequence is the last number of every sequence: it is exact in JSON.
	MaxSequence = uint64(1)<<53 - 1
)

// Validate refuses what the ledger cannot store. It does not check the stamp.
func (b Batch) Validate() error {
	if err := Name("resource", b.Resource); err != nil {
		return err
	}
	for _, t := range [...]struct{ field, text string }{{"holder", b.Holder}, {"digest", b.Digest}, {"deployment", b.Stamp.Deployment}, {"group", b.Stamp.Group}} {
		if err := text256(t.field, t.text); err != nil {
			return err
		}
	}
	if len(b.Writes) > MaxWrites {
		return &RequestError{Field: "writes", Value: strconv.Itoa(len(b.Writes)), Rule: fmt.Sprintf("at most %d in one batch", MaxWrites)}
	}
	for i, w := range b.Writes {
		if err := w.validate(); err != nil {
			return fmt.Errorf("write %d: %w", i, err)
		}
	}
	return nil
}

func (w Write) validate() error {
	set := 0
	var err error
	check := func(all ...error) {
		set++
		err = cmp.Or(append([]error{err}, all...)...)
	}
	if t := w.Tick; t != nil {
		check(text256("tick key", t.Key), value("tick payload", t.Payload, true))
	}
	if c := w.Checkpoint; c != nil {
		check(Name("checkpoint", c.Name), value("checkpoint value", c.Value, false))
	}
	if r := w.Record; r != nil {
		check(Name("record", r.Key), value("record value", r.Value, false))
	}
	if w.Sequence != nil {
		check(w.Sequence.validate())
	}
	if w.Job != nil {
		check(w.Job.validate())
	}
	if w.Fire != nil {
		check(w.Fire.validate())
	}
	if w.Delivered != nil {
		check(w.Delivered.validate())
	}
	if set != 1 {
		return &RequestError{Field: "write", Value: strconv.Itoa(set) + " kinds", Rule: "exactly one of tick, checkpoint, record, sequence, job, fire, delivered"}
	}
	return err
}

func (s SequenceWrite) validate() error {
	if err := Name("sequence", s.Name); err != nil {
		return err
	}
	proposed := s.First != 0 || s.Last != 0
	switch {
	case proposed && s.N != 0:
		return &RequestError{Field: "n", Value: strconv.FormatUint(s.N, 10), Rule: "either first and last, or n"}
	case !proposed && s.N == 0:
		return &RequestError{Field: "range", Rule: "first and last, or n, must be given"}
	case proposed && (s.First == 0 || s.Last < s.First || s.Last > MaxSequence):
		return &RequestError{Field: "range", Value: fmt.Sprintf("%d to %d", s.First, s.Last), Rule: "numbers from 1 to 2^53-1, the first not above the last"}
	case s.N > MaxRange || proposed && s.Last-s.First >= MaxRange:
		return &RequestError{Field: "range", Rule: fmt.Sprintf("at most %d numbers at once", MaxRange)}
	}
	return nil
}

// Sum is the digest of writes that have none.
func Sum(writes []Write) (string, error) {
	data, err := json.Marshal(writes)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// Name refuses what cannot be a name in a database or in a path.
func Name(field, s string) error {
	switch s {
	case "":
		return &RequestError{Field: field, Rule: "must not be empty"}
	case ".", "..":
		return &RequestError{Field: field, Value: s, Rule: "a name that a path can hold"}
	}
	return text256(field, s)
}

func text256(field, s string) error {
	if len(s) > MaxName {
		return &RequestError{Field: field, Value: fmt.Sprintf("%d bytes", len(s)), Rule: fmt.Sprintf("at most %d bytes", MaxName)}
	}
	if !utf8.ValidString(s) || strings.IndexByte(s, 0) >= 0 {
		return &RequestError{Field: field, Value: strconv.QuoteToASCII(s), Rule: "UTF-8 without zero bytes"}
	}
	return nil
}

func value(field string, v json.RawMessage, optional bool) error {
	switch {
	case len(v) == 0 && optional:
		return nil
	case len(v) == 0:
		return &RequestError{Field: field, Rule: "must be given"}
	case len(v) > MaxValue:
		return &RequestError{Field: field, Value: fmt.Sprintf("%d bytes", len(v)), Rule: fmt.Sprintf("at most %d bytes", MaxValue)}
	case !utf8.Valid(v) || bytes.IndexByte(v, 0) >= 0 || !json.Valid(v):
		return &RequestError{Field: field, Rule: "must be JSON in UTF-8"}
	}
	return nil
}
