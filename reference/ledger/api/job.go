package api

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/tenurehq/tenure/fence"
)

// What to do with instants that a job missed. The ledger keeps the word for the leader and does
// not act on it.
const (
	MisfireOnce = "once" // the default: the last of them is fired
	MisfireAll  = "all"  // each is fired
	MisfireSkip = "skip" // none is
)

// JobWrite creates, replaces or deletes the job with this key.
type JobWrite struct {
	Key string `json:"key"`
	// Schedule is for the leader; the ledger does not read it. Empty: the job is fired once.
	Schedule string          `json:"schedule,omitempty"`
	Misfire  string          `json:"misfire,omitempty"`
	Payload  json.RawMessage `json:"payload,omitempty"`
	// NextMS is the next instant at which the job is due.
	NextMS int64 `json:"next_ms,omitempty"`
	// Delete allows no field but the key.
	Delete bool `json:"delete,omitempty"`
}

// JobOutcome is the outcome of a JobWrite.
type JobOutcome struct {
	// Version counts the JobWrites of the resource. While it stays the same, no job was written.
	Version uint64 `json:"version"`
	// Existed: there was a job with this key.
	Existed bool `json:"existed,omitempty"`
	// NextMS is the instant that the job has now: that of the write, or an earlier one that is
	// due and was not fired, if the schedule stays the same. 0 if it was deleted.
	NextMS int64 `json:"next_ms,omitempty"`
}

// FireWrite fires a job that is due at DueMS: it records the firing (Job, AtMS) with the payload
// of the job, and moves the job to NextMS. A firing is recorded once, and kept until it was
// delivered.
type FireWrite struct {
	Job string `json:"job"`
	// DueMS is the next_ms that the job must have.
	DueMS int64 `json:"due_ms"`
	// AtMS is the instant that is fired: DueMS, or a later one that was missed too.
	AtMS int64 `json:"at_ms,omitempty"`
	// NextMS is when the job is due again; 0: never, and the job is deleted.
	NextMS int64 `json:"next_ms,omitempty"`
	// Skip moves the job and records nothing. AtMS is ignored.
	Skip bool `json:"skip,omitempty"`
}

// FireOutcome is the outcome of a FireWrite. Neither case fails the batch.
type FireOutcome struct {
	// Duplicate: this firing had been recorded before.
	Duplicate bool `json:"duplicate,omitempty"`
	// Moved: the job is due at another instant, or was deleted. Nothing was done.
	Moved bool `json:"moved,omitempty"`
}

// DeliveredWrite records that a worker has a firing. It may be repeated.
type DeliveredWrite struct {
	Job    string `json:"job"`
	AtMS   int64  `json:"at_ms"`
	Worker string `json:"worker,omitempty"`
}

// DeliveredOutcome is the outcome of a DeliveredWrite.
type DeliveredOutcome struct {
	// Duplicate: it had been delivered before; the first record stays.
	Duplicate bool `json:"duplicate,omitempty"`
	// Missing: there is no such firing.
	Missing bool `json:"missing,omitempty"`
}

// Job is due at NextMS, and perhaps again.
type Job struct {
	Key       string          `json:"key"`
	Schedule  string          `json:"schedule,omitempty"`
	Misfire   string          `json:"misfire"`
	Payload   json.RawMessage `json:"payload,omitempty"`
	NextMS    int64           `json:"next_ms"`
	Token     fence.Token     `json:"token"`
	UpdatedMS int64           `json:"updated_ms"`
}

// Jobs is a page of jobs in the order in which they are due.
type Jobs struct {
	Page[Job]
	// NowMS is the ledger's wall clock.
	NowMS int64 `json:"now_ms"`
	// Version is that of JobOutcome: the page has every JobWrite up to it.
	Version uint64 `json:"jobs_version"`
	// Total is how many jobs the resource has.
	Total uint64 `json:"total"`
}

// Firing records that a job was due. N counts the firings of a resource.
type Firing struct {
	N       uint64          `json:"n"`
	Job     string          `json:"job"`
	AtMS    int64           `json:"at_ms"`
	Token   fence.Token     `json:"token"`
	FiredMS int64           `json:"fired_ms"`
	Payload json.RawMessage `json:"payload,omitempty"`
	Worker  string          `json:"worker,omitempty"`
	// DeliveredMS is 0 while it is pending.
	DeliveredMS int64 `json:"delivered_ms,omitempty"`
}

// MaxPayload is the largest payload of a job in bytes: a page has many jobs.
const MaxPayload = 64 << 10

func (j JobWrite) validate() error {
	switch {
	case j.Delete && (j.Schedule != "" || j.Misfire != "" || len(j.Payload) > 0 || j.NextMS != 0):
		return cmp.Or(Name("job", j.Key), error(&RequestError{Field: "delete", Rule: "goes with the key alone"}))
	case j.Delete:
		return Name("job", j.Key)
	}
	var misfire, size error
	if !slices.Contains([]string{"", MisfireOnce, MisfireAll, MisfireSkip}, j.Misfire) {
		misfire = &RequestError{Field: "misfire", Value: clip(j.Misfire), Rule: "once, all or skip"}
	}
	if len(j.Payload) > MaxPayload {
		size = &RequestError{Field: "job payload", Value: fmt.Sprintf("%d bytes", len(j.Payload)), Rule: fmt.Sprintf("at most %d bytes", MaxPayload)}
	}
	return cmp.Or(Name("job", j.Key), misfire, size, value("job payload", j.Payload, true), text256("schedule", j.Schedule), instant("next_ms", j.NextMS))
}

func (f FireWrite) validate() error {
	var wrong error
	at := f.AtMS
	if f.Skip {
		at = f.DueMS
	}
	switch {
	case at < f.DueMS || at > maxInstant:
		wrong = &RequestError{Field: "at_ms", Value: strconv.FormatInt(at, 10), Rule: "due_ms, or a later instant"}
	case f.NextMS != 0 && (f.NextMS <= at || f.NextMS > maxInstant):
		wrong = &RequestError{Field: "next_ms", Value: strconv.FormatInt(f.NextMS, 10), Rule: "0, or an instant after the one that is fired"}
	}
	return cmp.Or(Name("job", f.Job), instant("due_ms", f.DueMS), wrong)
}

func (d DeliveredWrite) validate() error {
	return cmp.Or(Name("job", d.Job), text256("worker", d.Worker), instant("at_ms", d.AtMS))
}

// maxInstant is exact in JSON.
const maxInstant = int64(MaxSequence)

func instant(field string, ms int64) error {
	if ms < 1 || ms > maxInstant {
		return &RequestError{Field: field, Value: strconv.FormatInt(ms, 10), Rule: "milliseconds since 1970, from 1 to 2^53-1"}
	}
	return nil
}

func clip(s string) string { return s[:min(len(s), 32)] }
