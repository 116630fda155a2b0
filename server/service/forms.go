package service

import (
	"cmp"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/election"
)

// Duration is a duration in a request: a string such as "15s", or a number of seconds.
type Duration time.Duration

// maxSeconds keeps a number of seconds within a time.Duration.
const maxSeconds = 1e9

// UnmarshalJSON decodes both forms.
func (d *Duration) UnmarshalJSON(b []byte) error {
	wrong := errors.New(`want a duration such as "15s", or a number of seconds`)
	var text string
	if json.Unmarshal(b, &text) == nil {
		span, err := time.ParseDuration(text)
		if err != nil {
			return wrong
		}
		*d = Duration(span)
		return nil
	}
	seconds, err := strconv.ParseFloat(string(b), 64)
	if err != nil || seconds > maxSeconds || seconds < -maxSeconds {
		return wrong
	}
	*d = Duration(seconds * float64(time.Second))
	return nil
}

// MarshalJSON encodes the string.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(time.Duration(d).String()) }

// OpenAPISchema describes both forms.
func (Duration) OpenAPISchema() map[string]any {
	return map[string]any{"type": []string{"string", "number"}}
}

// into sets the field in milliseconds that means the same.
func (d Duration) into(ms *int64, name string) error {
	switch got := time.Duration(d); {
	case d == 0:
		return nil
	case got%time.Millisecond != 0:
		return bad("bad_argument", "%s: %v is not a number of whole milliseconds", name, got)
	case *ms != 0 && *ms != got.Milliseconds():
		return bad("bad_argument", "%s and %s_ms differ: send one of them", name, name)
	default:
		*ms = got.Milliseconds()
		return nil
	}
}

// The settle methods turn a request that can be written in several ways into the form that
// the handlers read, and report missing fields.

func (in *CampaignRequest) settle() error {
	return cmp.Or(required("node_id", in.NodeID == ""), in.TTL.into(&in.TTLMS, "ttl"))
}

func (in *SessionRequest) settle() error {
	return cmp.Or(required("node_id", in.NodeID == ""), in.TTL.into(&in.TTLMS, "ttl"))
}

func (in *RenewRequest) settle() error {
	err := cmp.Or(required("node_id", in.NodeID == ""), required("term", in.Term == 0), in.ExtendBy.into(&in.ExtendByMS, "extend_by"))
	if err == nil && in.ExtendByMS < 0 {
		err = bad("bad_argument", "extend_by: must be positive")
	}
	return err
}

func (in *ResignRequest) settle() error {
	return cmp.Or(required("node_id", in.NodeID == ""), required("term", in.Term == 0), required("handle", in.Handle == ""))
}

// required reports a field that is missing.
func required(name string, missing bool) error {
	if !missing {
		return nil
	}
	where := map[string]string{
		"node_id": "the name of the node that sends the request",
		"term":    "the number from the answer of the campaign",
		"handle":  "the text from the answer of the campaign or of POST /sessions",
	}
	return bad("missing_field", "%s: missing; send %s", name, where[name])
}

// expiry is the wall-clock time, for people, at which a lease ends that began at an instant.
func (s *Service) expiry(began clock.Instant, ttl time.Duration) string {
	return time.Now().Add(ttl - s.clock.Now().Sub(began)).UTC().Format("2006-01-02T15:04:05.000Z")
}

// held is election.Outcome.Held in milliseconds, for a lease that began at an instant.
func (s *Service) held(arrived, began clock.Instant) int64 {
	out := election.Outcome{Sent: began}
	return out.Held(arrived, s.cfg.Drift).Milliseconds()
}

// jittered adds up to half of d, so that callers that were refused together do not retry
// together.
func jittered(d time.Duration) time.Duration { return d + rand.N(d/2+1) }
