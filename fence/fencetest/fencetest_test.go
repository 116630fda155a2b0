package fencetest

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/fence"
)

// memory is a minimal sink. Its data outlives a connection, but not the process.
type memory struct {
	mu  sync.Mutex
	all map[string]*stored
}

type stored struct {
	writing sync.Mutex // for the twin whose seals do not wait
	mu      sync.Mutex
	mark    fence.Mark
	answer  string
	effects []string
}

func (m *memory) sink() Sink {
	return Sink{
		Name: "memory",
		Create: func(testing.TB) string {
			m.mu.Lock()
			defer m.mu.Unlock()
			where := strconv.Itoa(len(m.all))
			m.all[where] = &stored{}
			return where
		},
		Open: func(where string) (Resource, error) { return m.at(where).resource(), nil },
	}
}

func (m *memory) at(where string) *stored {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all[where]
}

func (s *stored) move(stamp fence.Stamp, rule func(fence.Mark, fence.Stamp) (fence.Mark, error)) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mark, err = rule(s.mark, stamp)
	return err
}

func (s *stored) resource() Resource {
	return Resource{
		Write: func(ctx context.Context, stamp fence.Stamp, payload string) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			next, err := s.mark.Admit(stamp)
			if err != nil {
				return err
			}
			Between(ctx)
			s.mark, s.effects = next, append(s.effects, payload)
			return nil
		},
		Effects: func(context.Context) ([]string, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return slices.Clone(s.effects), nil
		},
		Mark: func(context.Context) (fence.Mark, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.mark, nil
		},
		Seal:    func(_ context.Context, stamp fence.Stamp) error { return s.move(stamp, fence.Mark.Admit) },
		Advance: func(_ context.Context, stamp fence.Stamp) error { return s.move(stamp, fence.Mark.Advance) },
		WriteStrict: func(ctx context.Context, stamp fence.Stamp, digest, payload string) (string, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			next, verdict, err := s.mark.AdmitStrict(stamp, digest)
			switch {
			case err != nil:
				return "", err
			case verdict == fence.Retry:
				return s.answer, nil
			}
			Between(ctx)
			s.mark, s.effects = next, append(s.effects, payload)
			s.answer = "made " + payload
			return s.answer, nil
		},
	}
}

// ofProcesses reports whether a promise needs several processes, which memory does not support.
func ofProcesses(p Promise) bool {
	return slices.Contains([]Promise{KillBetween, KillAnywhere, StrictKilled}, p)
}

// The suite reports no error for a correct sink.
func TestGood(t *testing.T) {
	m := &memory{all: make(map[string]*stored)}
	broken := Check(t, m.sink(), slices.DeleteFunc(Promises(), ofProcesses)...)
	for name, err := range broken {
		t.Errorf("%s: %v", name, err)
	}
}

// For every promise there is a twin that breaks it, and the suite notices.
func TestBroken(t *testing.T) {
	refuse := errors.Join(fence.ErrRefused, errors.New("refused in words only"))
	caught := make(map[Promise]bool)
	for _, tt := range []struct {
		name  string
		twin  func(s *stored, r *Resource)
		fails []Promise
	}{
		{"everything is let in", func(s *stored, r *Resource) {
			r.Write = func(_ context.Context, _ fence.Stamp, payload string) error {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.effects = append(s.effects, payload)
				return nil
			}
		}, []Promise{StaleRefused, SlipRefused, ForeignRefused, InvalidRefused, SealCloses, MarkSurvives, Atomic}},
		{"nothing is let in", func(_ *stored, r *Resource) {
			r.Write = func(context.Context, fence.Stamp, string) error { return refuse }
		}, []Promise{FirstContact, OwnMark}},
		{"first contact only from 1", func(s *stored, r *Resource) {
			write := r.Write
			r.Write = func(ctx context.Context, stamp fence.Stamp, payload string) error {
				if s.mark.Token == 0 && stamp.Token > 1000 {
					return refuse
				}
				return write(ctx, stamp, payload)
			}
		}, []Promise{FirstContact}},
		{"a refusal without a type", func(_ *stored, r *Resource) {
			write := r.Write
			r.Write = func(ctx context.Context, stamp fence.Stamp, payload string) error {
				if write(ctx, stamp, payload) != nil {
					return refuse
				}
				return nil
			}
		}, []Promise{StaleRefused, SlipRefused, ForeignRefused, InvalidRefused}},
		{"a refused write raises the mark", func(s *stored, r *Resource) {
			write := r.Write
			r.Write = func(ctx context.Context, stamp fence.Stamp, payload string) error {
				err := write(ctx, stamp, payload)
				s.mu.Lock()
				defer s.mu.Unlock()
				s.mark.Token = max(s.mark.Token, stamp.Token)
				return err
			}
		}, []Promise{SlipRefused, ForeignRefused, InvalidRefused}},
		{"the check is apart", func(s *stored, r *Resource) {
			r.Write = func(ctx context.Context, stamp fence.Stamp, payload string) error {
				if err := s.move(stamp, fence.Mark.Admit); err != nil {
					return err
				}
				Between(ctx)
				s.mu.Lock()
				defer s.mu.Unlock()
				s.effects = append(s.effects, payload)
				return nil
			}
		}, []Promise{NotOvertaken, Atomic}},
		{"the new leader starves", func(_ *stored, r *Resource) {
			write := r.Write
			r.Write = func(ctx context.Context, stamp fence.Stamp, payload string) error {
				if stamp.Token == 5 {
					<-ctx.Done()
					return ctx.Err()
				}
				time.Sleep(time.Millisecond)
				if ctx.Err() != nil {
					return ctx.Err()
				}
				return write(ctx, stamp, payload)
			}
		}, []Promise{Atomic}},
		{"a seal passes by the writers", func(s *stored, r *Resource) {
			r.Write = func(ctx context.Context, stamp fence.Stamp, payload string) error {
				s.writing.Lock()
				defer s.writing.Unlock()
				if err := s.move(stamp, fence.Mark.Admit); err != nil {
					return err
				}
				Between(ctx)
				s.mu.Lock()
				defer s.mu.Unlock()
				s.effects = append(s.effects, payload)
				return nil
			}
		}, []Promise{SealWaits}},
		{"between is forgotten", func(_ *stored, r *Resource) {
			write, strict := r.Write, r.WriteStrict
			r.Write = func(ctx context.Context, stamp fence.Stamp, payload string) error {
				return write(between(ctx, func() {}), stamp, payload)
			}
			r.WriteStrict = func(ctx context.Context, stamp fence.Stamp, digest, payload string) (string, error) {
				return strict(between(ctx, func() {}), stamp, digest, payload)
			}
		}, []Promise{NotOvertaken, SealWaits}},
		{"a seal does nothing", func(_ *stored, r *Resource) {
			r.Seal = func(context.Context, fence.Stamp) error { return nil }
		}, []Promise{SealCloses, SealRefused, MarkSurvives}},
		{"the session is not stored", func(s *stored, r *Resource) {
			write, seal := r.Write, r.Seal
			forget := func(err error) error {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.mark.Session = ""
				return err
			}
			r.Write = func(ctx context.Context, stamp fence.Stamp, payload string) error {
				return forget(write(ctx, stamp, payload))
			}
			r.Seal = func(ctx context.Context, stamp fence.Stamp) error { return forget(seal(ctx, stamp)) }
		}, []Promise{SessionRefused}},
		{"a seal does not look at the session", func(s *stored, r *Resource) {
			seal := r.Seal
			r.Seal = func(ctx context.Context, stamp fence.Stamp) error {
				stamp.Session = ""
				return seal(ctx, stamp)
			}
		}, []Promise{SessionRefused}},
		{"an advance goes back", func(s *stored, r *Resource) {
			r.Advance = func(_ context.Context, stamp fence.Stamp) error {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.mark.Token, s.mark.Deployment, s.mark.Group = stamp.Token, stamp.Deployment, stamp.Group
				return nil
			}
		}, []Promise{AdvancePasses}},
		{"strict is not strict", func(_ *stored, r *Resource) {
			r.WriteStrict = func(ctx context.Context, stamp fence.Stamp, _, payload string) (string, error) {
				return "made " + payload, r.Write(ctx, stamp, payload)
			}
		}, []Promise{StrictOrder, StrictRetry, StrictClone, StrictSurvives}},
		{"the answer is made anew", func(_ *stored, r *Resource) {
			strict := r.WriteStrict
			r.WriteStrict = func(ctx context.Context, stamp fence.Stamp, digest, payload string) (string, error) {
				_, err := strict(ctx, stamp, digest, payload)
				return "made " + payload, err
			}
		}, []Promise{StrictRetry}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := &memory{all: make(map[string]*stored)}
			twin := m.sink()
			twin.Patience = time.Second
			twin.Open = func(where string) (Resource, error) {
				s := m.at(where)
				r := s.resource()
				tt.twin(s, &r)
				return r, nil
			}
			Breaks(t, twin, tt.fails...)
		})
		for _, p := range tt.fails {
			caught[p] = true
		}
	}
	for _, p := range Promises() {
		if !caught[p] && !ofProcesses(p) {
			t.Errorf("no twin breaks %q", p)
		}
	}
}

// A sink without a moment between check and effect is not checked there if it gives a reason.
func TestNoMoment(t *testing.T) {
	m := &memory{all: make(map[string]*stored)}
	s := m.sink()
	s.NoMoment = "it is told so"
	s.Open = func(where string) (Resource, error) {
		r := m.at(where).resource()
		write := r.Write
		r.Write = func(ctx context.Context, stamp fence.Stamp, payload string) error {
			return write(between(ctx, func() {}), stamp, payload)
		}
		return r, nil
	}
	for _, p := range promises() {
		if p.name != NotOvertaken && p.name != SealWaits {
			continue
		}
		if skipped, wrong := observe(t, s, p); wrong != nil || !strings.Contains(skipped, s.NoMoment) {
			t.Errorf("%s: skipped %q, wrong %v", p.name, skipped, wrong)
		}
	}
}

// If TestMain does not call Child, the error says so.
func TestNoChild(t *testing.T) {
	m := &memory{all: make(map[string]*stored)}
	broken := Check(t, m.sink(), KillBetween, KillAnywhere)
	if len(broken) != 2 {
		t.Errorf("without Child only these fail: %v", broken)
	}
}

// Each promise has a name and a check of its own.
func TestPromises(t *testing.T) {
	seen := make(map[Promise]bool)
	for _, p := range promises() {
		if p.name == "" || p.check == nil || seen[p.name] {
			t.Errorf("promise %q is listed twice, or has no check", p.name)
		}
		seen[p.name] = true
	}
}
