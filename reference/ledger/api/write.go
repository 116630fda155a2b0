package api

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tenurehq/tenure/fence"
)

// Batch is writes of one leader to one resource: all are made, or none.
//
// A stamp with a seq is strict: such batches are accepted in order only, and one
// that is repeated with the same digest is answered as it was the first time.
type Batch struct {
	Resource string
	Stamp    fence.Stamp
	// Holder is who writes, for the list of refused writes. Optional.
	Holder string
	// Seen is what the writer has seen of the ledger. Optional.
	Seen Identity
	// Digest stands for the content of a strict batch. Default: that of Writes.
	Digest string
	Writes []Write
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

// TickWrite adds an entry to the resource's log.
type TickWrite struct {
	// Key, if given, is the tick's identity: a second with the same key is not
	// added, and the answer says which was first.
	Key     string          `json:"key,omitempty"`
	Payload json.RawMessage `json:"payload,omitempty"`
}

// CheckpointWrite replaces a checkpoint: how far somebody has got.
type CheckpointWrite struct {
	Name  string          `json:"name"`
	Value json.RawMessage `json:"value"`
}

// RecordWrite replaces a record.
type RecordWrite struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
	// Version, if given, is what the record must have now; 0: it must not exist.
	Version *uint64 `json:"version,omitempty"`
}

// SequenceWrite takes a range of numbers: the one that the leader proposes, which
// must follow the last that was taken, or the next N.
type SequenceWrite struct {
	Name  string `json:"name"`
	First uint64 `json:"first,omitempty"`
	Last  uint64 `json:"last,omitempty"`
	N     uint64 `json:"n,omitempty"`
}

// Answer is what became of a batch.
type Answer struct {
	Resource string      `json:"resource"`
	Token    fence.Token `json:"token"`
	Seq      uint64      `json:"seq,omitempty"`
	// AtMS is the ledger's wall clock when the batch was committed: of one that was
	// repeated, the first time.
	AtMS int64 `json:"at_ms"`
	// Outcomes are in the order of the writes.
	Outcomes []Outcome `json:"outcomes"`
	// Ledger is which ledger answered, and its revision after the batch.
	Ledger Identity `json:"-"`
	// Retried: the batch was made before, and this is the answer it got then.
	Retried bool `json:"-"`
}

// Outcome is what became of one write.
type Outcome struct {
	Tick       *TickOutcome      `json:"tick,omitempty"`
	Checkpoint *VersionOutcome   `json:"checkpoint,omitempty"`
	Record     *VersionOutcome   `json:"record,omitempty"`
	Sequence   *Range            `json:"sequence,omitempty"`
	Job        *JobOutcome       `json:"job,omitempty"`
	Fire       *FireOutcome      `json:"fire,omitempty"`
	Delivered  *DeliveredOutcome `json:"delivered,omitempty"`
}

// TickOutcome says where in the log the tick is: ticks of a resource are numbered
// from 1, in the order in which they were accepted.
type TickOutcome struct {
	N uint64 `json:"n"`
	// Duplicate: a tick with this key was there; it is number N.
	Duplicate bool `json:"duplicate,omitempty"`
}

// VersionOutcome is the version that a checkpoint or record has now.
type VersionOutcome struct {
	Version uint64 `json:"version"`
}

// Range is numbers that belong to whoever was told so, and to nobody else.
type Range struct {
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
}

// Limits of one request. They keep every row, answer and message small.
const (
	MaxName   = 256  // bytes of a name or key
	MaxWrites = 2000 // of one batch: a tick, its checkpoint and a thousand firings fit in
	MaxValue  = 1 << 20
	MaxRange  = 1_000_000 // numbers at once
	// MaxSequence is the last number of every sequence: exact in JSON.
	MaxSequence = uint64(1)<<53 - 1
)

// Validate refuses what the ledger could not keep. The stamp is not looked at: the
// rule does that.
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
	check := func(e error) {
		if err == nil {
			err = e
		}
	}
	if t := w.Tick; t != nil {
		set++
		check(text256("tick key", t.Key))
		check(value("tick payload", t.Payload, true))
	}
	if c := w.Checkpoint; c != nil {
		set++
		check(Name("checkpoint", c.Name))
		check(value("checkpoint value", c.Value, false))
	}
	if r := w.Record; r != nil {
		set++
		check(Name("record", r.Key))
		check(value("record value", r.Value, false))
	}
	if s := w.Sequence; s != nil {
		set++
		check(s.validate())
	}
	if j := w.Job; j != nil {
		set++
		check(j.validate())
	}
	if f := w.Fire; f != nil {
		set++
		check(f.validate())
	}
	if d := w.Delivered; d != nil {
		set++
		check(d.validate())
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

// Sum is the digest of writes that came without one.
func Sum(writes []Write) (string, error) {
	data, err := json.Marshal(writes)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// Name refuses what cannot be the name of something, in a database or in a path.
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
