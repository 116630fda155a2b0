package feed

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// A cursor survives encoding and decoding.
func TestCursor(t *testing.T) {
	c := Cursor{Deployment: "d1"}
	for i := range MaxGroups {
		name := strings.Repeat("x", 60) + string(rune('a'+i/26)) + string(rune('a'+i%26))
		c.Places = append(c.Places, Place{name, store.Cursor{Token: fence.MaxToken, State: tenure.State(i % 3)}})
	}
	c.Places[0].Token = 0
	got, err := ParseCursor(c.String())
	if err != nil || got.String() != c.String() || len(got.Places) != MaxGroups || got.Places[1] != c.Places[1] {
		t.Errorf("%v, %v", got, err)
	}
	const header = 32 << 10
	if n := len(c.String()); n > header/2 {
		t.Errorf("the longest cursor has %d bytes, too many for a header", n)
	}
}

// Any other text is refused, and an accepted one has one meaning.
func FuzzCursor(f *testing.F) {
	f.Add(Cursor{Deployment: "d", Places: []Place{{"a", store.Cursor{Token: 7, State: tenure.Led}}}}.String())
	f.Add("")
	f.Add("MTtkO2E9MDFs")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseCursor(s)
		if err != nil {
			if !errors.Is(err, ErrCursor) {
				t.Errorf("%q: %v", s, err)
			}
			return
		}
		again, err := ParseCursor(c.String())
		if err != nil || again.String() != c.String() {
			t.Errorf("%q: %+v, then %+v, %v", s, c, again, err)
		}
	})
}

// led comes before vacant with the same token, and both before the next token.
func TestBefore(t *testing.T) {
	order := []store.Cursor{{Token: 0, State: tenure.Vacant}, {Token: 1, State: tenure.Led}, {Token: 1, State: tenure.Vacant}, {Token: 2, State: tenure.Led}}
	for i, a := range order {
		for j, b := range order {
			if before(a, b) != (i < j) {
				t.Errorf("before(%+v, %+v) is %v", a, b, before(a, b))
			}
		}
	}
}

// slowStore answers slowly, with what it read when the call began.
type slowStore struct {
	store.Store
	token   atomic.Uint64
	asked   chan struct{}
	release chan struct{}
}

func (s *slowStore) Read(_ context.Context, group string) (store.View, error) {
	v := store.View{Record: store.Record{Group: group, Token: fence.Token(s.token.Load())}}
	s.asked <- struct{}{}
	<-s.release
	return v, nil
}

// A caller that arrives during a read does not get its result, because the engine may have
// read before the call. All callers that arrive meanwhile share the next read.
func TestReadBeganAfter(t *testing.T) {
	s := &slowStore{asked: make(chan struct{}), release: make(chan struct{})}
	s.token.Store(1)
	r := NewReader(s, clock.System(), time.Minute, nil)
	defer r.Close()
	answers := make(chan fence.Token, 10)
	var all sync.WaitGroup
	read := func() {
		a, err := r.Read(t.Context(), "g")
		if err != nil {
			t.Error(err)
		}
		answers <- a.Token
	}
	all.Go(read)
	<-s.asked
	s.token.Store(2)
	for range 5 {
		f, err := r.join("g")
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() { <-f.done; answers <- f.answer.Token })
	}
	s.release <- struct{}{}
	if first := <-answers; first != 1 {
		t.Errorf("the first was answered %d", first)
	}
	<-s.asked
	s.release <- struct{}{}
	all.Wait()
	for range 5 {
		if later := <-answers; later != 2 {
			t.Errorf("a later one was answered %d", later)
		}
	}
}

// An answer is encoded once per millisecond of its age. A failed encoding is not cached.
func TestEncodedOnce(t *testing.T) {
	var r Remembered
	made := 0
	say := func(ageMS int64, fail error) string {
		body, _ := r.Say(ageMS, func() ([]byte, error) {
			made++
			return fmt.Appendf(nil, "%d", made), fail
		})
		return string(body)
	}
	_ = say(7, errors.New("no"))
	for i, c := range []struct {
		ageMS int64
		want  string
	}{{7, "2"}, {7, "2"}, {8, "3"}, {8, "3"}, {7, "4"}} {
		if got := say(c.ageMS, nil); got != c.want {
			t.Errorf("answer %d, of age %d: %s, want %s", i, c.ageMS, got, c.want)
		}
	}
}

// When a record is removed, its group is vacant after its last token, which is no sign of lost data,
// and without subscribers nothing is kept.
func TestRetired(t *testing.T) {
	var states []string
	f := New(Config{OnChange: func(v store.View, _ int, _ time.Duration, back bool) {
		states = append(states, fmt.Sprint(v.State, v.Token, back))
	}})
	f.setSynced(true, nil)
	sub := f.Subscribe("set--b")
	for _, g := range []string{"set--a", "set--b"} {
		f.apply(store.View{Record: store.Record{Group: g, Version: 9, Token: 3, Holder: "s"}, State: tenure.Led})
		f.retired(g)
	}
	f.resetMissing(nil)
	if got, want := strings.Join(states, ","), "led 3 false,vacant 3 false,led 3 false,vacant 3 false"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if v, _ := f.View("set--b"); v.Token != 3 || len(f.topics) != 1 {
		t.Errorf("%+v, %d topics", v, len(f.topics))
	}
	if sub.Close(); len(f.topics) != 0 {
		t.Errorf("%d topics are left", len(f.topics))
	}
}
