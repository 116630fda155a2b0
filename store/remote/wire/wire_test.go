package wire_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/remote/wire"
)

// Every definite error comes out as itself and as no other, with its words; every
// other one leaves the outcome unknown.
func TestErrors(t *testing.T) {
	definite := []error{
		store.ErrSessionDead, store.ErrConflict, store.ErrSuccessor, store.ErrRewound, store.ErrInvalid, store.ErrBusy, store.ErrNotFound,
	}
	travel := func(m wire.Method, err error) error {
		t.Helper()
		body, jerr := json.Marshal(wire.ProblemOf(m, err))
		var p wire.Problem
		if jerr = errors.Join(jerr, json.Unmarshal(body, &p)); jerr != nil {
			t.Fatal(jerr)
		}
		return p.Definite()
	}
	for i, want := range definite {
		if !store.Definite(want) {
			t.Errorf("%v is not definite", want)
		}
		said := fmt.Errorf("engine: something: %w", want)
		got := travel(wire.Acquire, said)
		if got == nil || got.Error() != said.Error() {
			t.Errorf("%v came out as %v", said, got)
		}
		for j, other := range definite {
			if errors.Is(got, other) != (i == j) {
				t.Errorf("%v came out as %v", want, got)
			}
		}
	}
	for _, m := range []wire.Method{wire.Acquire, wire.Read} {
		if got := travel(m, errors.New("the engine is gone")); got != nil {
			t.Errorf("%s: an unknown outcome came out as %v", m, got)
		}
	}

	view := store.View{Record: store.Record{Group: "g", Version: 7, Token: 3, Holder: "s1", Candidate: tenure.Candidate{ID: "a"}}, State: tenure.Led}
	var conflict *store.ConflictError
	if err := travel(wire.Acquire, &store.ConflictError{Current: []store.View{view}}); !errors.As(err, &conflict) || !reflect.DeepEqual(conflict.Current, []store.View{view}) {
		t.Errorf("a conflict came out as %v", err)
	}
	var argument *store.ArgumentError
	if err := travel(wire.Read, &store.ArgumentError{Field: "group", Value: "?", Rule: "r"}); !errors.As(err, &argument) || *argument != (store.ArgumentError{Field: "group", Value: "?", Rule: "r"}) {
		t.Errorf("an argument error came out as %v", err)
	}
}

// Nothing of a value is lost on the way, and a field that is added to a type of
// package lease is not forgotten here.
func TestRoundTrip(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	who := tenure.Candidate{ID: "a", Address: "h:1", Metadata: map[string]string{"k": "v"}, Priority: 2}
	term := store.Term{Token: 4, Candidate: "a", Session: "s1", Begin: at, End: at.Add(1), Reason: store.Resigned}
	record := store.Record{Group: "g", Version: 9, Token: 4, Holder: "s1", Candidate: who, Terms: []store.Term{term}}
	request := store.Request{ID: "r", Verb: store.Transfer, Group: "g", Token: 4, To: "b", Reason: "why", CoolDown: time.Second, TTL: time.Minute}
	for _, v := range []any{
		store.Session{ID: "s1", Candidate: who, Instance: "i", Fenced: true, Successor: true, Scope: store.Scope{"g"}, TTL: time.Second, Deployment: "d", Opened: 8},
		store.Beat{TTL: time.Second, Requests: []store.Request{request}, Records: []store.Record{record}},
		store.View{Record: record, State: tenure.Led},
		store.Attributes{Name: "n", Version: 3, Values: who.Metadata},
		store.Caps{Engine: "e", MinTTL: time.Second, MaxTTL: time.Hour, Step: time.Second, Batch: 3, Observed: true, Lateness: time.Second, Loses: "w"},
		store.Meta{Deployment: "d", Epoch: 1, Index: 2, Rewound: true, Why: "w"},
		store.Answer{Outcome: store.Done, Detail: "x"},
	} {
		full(t, fmt.Sprintf("%T", v), reflect.ValueOf(v))
		var got any
		switch v := v.(type) {
		case store.Session:
			got = travel(t, wire.SessionOf(v)).Lease()
		case store.Beat:
			got = travel(t, wire.BeatOf(v)).Lease()
		case store.View:
			read, err := travel(t, wire.ViewOf(v)).Lease()
			if err != nil {
				t.Fatal(err)
			}
			got = read
		case store.Attributes:
			got = travel(t, v)
		case store.Caps:
			got = travel(t, wire.WelcomeOf(v, "d")).Caps()
		case store.Meta:
			got = travel(t, v)
		case store.Answer:
			got = travel(t, v)
		}
		if !reflect.DeepEqual(got, v) {
			t.Errorf("%+v came out as %+v", v, got)
		}
	}
}

func travel[T any](t *testing.T, v T) (out T) {
	t.Helper()
	body, err := json.Marshal(v)
	if err = errors.Join(err, json.Unmarshal(body, &out)); err != nil {
		t.Fatal(err)
	}
	return out
}

// full complains about fields that the test leaves at zero.
func full(t *testing.T, where string, v reflect.Value) {
	t.Helper()
	switch {
	case v.IsZero():
		t.Errorf("%s is zero: nothing would be noticed", where)
	case v.Type() == reflect.TypeFor[time.Time]():
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			full(t, where+"."+v.Type().Field(i).Name, v.Field(i))
		}
	case v.Kind() == reflect.Slice:
		full(t, where+"[0]", v.Index(0))
	}
}

// What is asked for is rounded away from nothing, what is given towards it, and
// what fits no duration is out of every bound.
func TestDurations(t *testing.T) {
	for _, tt := range []struct {
		d            time.Duration
		asked, given int64
	}{{0, 0, 0}, {1, 1, 0}, {-1, -1, 0}, {time.Millisecond, 1, 1}, {1500 * time.Microsecond, 2, 1}, {-1500 * time.Microsecond, -2, -1}} {
		if a, g := wire.Asked(tt.d), wire.Given(tt.d); a != tt.asked || g != tt.given {
			t.Errorf("%v: %d, %d", tt.d, a, g)
		}
	}
	if d := wire.Duration(1 << 62); d < 100*365*24*time.Hour {
		t.Errorf("%v", d)
	}
	if d := wire.Duration(-1 << 62); d > -100*365*24*time.Hour {
		t.Errorf("%v", d)
	}
}

// A state that a reader does not know is no vacancy.
func TestUnknownState(t *testing.T) {
	for _, state := range []string{"", "unknown", "Vacant"} {
		if v, err := (wire.View{State: state}).Lease(); err == nil {
			t.Errorf("%q was read as %v", state, v.State)
		}
	}
}
