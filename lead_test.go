package tenure_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/tenuretest"
)

// logbook collects what Lead says.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logbook) option() tenure.Option {
	return tenure.WithLog(slog.New(slog.NewTextHandler(l, nil)))
}

// quiet keeps Lead's warnings out of the output of the tests.
func quiet() tenure.Option { return tenure.WithLog(slog.New(slog.DiscardHandler)) }

// Lead refuses what cannot work before it campaigns, and names it.
func TestLeadArguments(t *testing.T) {
	work := func(context.Context, *tenure.Term) error { return nil }
	for _, tt := range []struct {
		name string
		e    tenure.Elector
		work func(context.Context, *tenure.Term) error
		opts []tenure.Option
		want string
	}{
		{"elector", nil, work, nil, "elector is nil"},
		{"typed nil elector", (*scriptedElector)(nil), work, nil, "elector is nil"},
		{"work", newScriptedElector(1), nil, nil, "work is nil"},
		{"option", newScriptedElector(1), work, []tenure.Option{quiet(), nil}, "option 2 is nil"},
		{"sink", newScriptedElector(1), work, []tenure.Option{tenure.WithSinks(new(tenuretest.Sink), nil)}, "sink is nil"},
		{"typed nil sink", newScriptedElector(1), work, []tenure.Option{tenure.WithSinks((*tenuretest.Sink)(nil))}, "sink is nil"},
		{"sink function", newScriptedElector(1), work, []tenure.Option{tenure.WithSinks(sealerFunc(nil))}, "sink is nil"},
		{"seal timeout", newScriptedElector(1), work, []tenure.Option{tenure.WithSealTimeout(0)}, "seal timeout 0s"},
		{"no backoff", newScriptedElector(1), work, []tenure.Option{tenure.WithBackoff(0, time.Second)}, "backoff from 0s to 1s"},
		{"falling backoff", newScriptedElector(1), work, []tenure.Option{tenure.WithBackoff(2*time.Second, time.Second)}, "backoff from 2s to 1s"},
	} {
		err := tenure.Lead(t.Context(), tt.e, tt.work, tt.opts...)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
		if e, ok := tt.e.(*scriptedElector); ok && e != nil && len(e.grants) > 0 {
			t.Errorf("%s: it has campaigned", tt.name)
		}
	}
	var none context.Context
	if err := tenure.Lead(none, newScriptedElector(1), work); err == nil || !strings.Contains(err.Error(), "context is nil") {
		t.Errorf("context: %v", err)
	}
	term, err := newScriptedElector(1).Campaign(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"Seal": term.Seal(none), "Resign": term.Resign(none), "TransferTo": term.TransferTo(none, "b")} {
		if err == nil {
			t.Errorf("%s without a context: %v", what, err)
		}
	}
	if err := term.Check(); err != nil {
		t.Errorf("a call without a context ended the term: %v", err)
	}
	if err := term.Seal(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "sink is nil") {
		t.Errorf("Seal: %v", err)
	}
}

// Lead ends with the elector's error when there is no term to be had, and with
// the cause of its context when that has ended.
func TestLeadEnds(t *testing.T) {
	work := func(context.Context, *tenure.Term) error {
		t.Error("work runs without a term")
		return nil
	}
	if err := tenure.Lead(t.Context(), newScriptedElector(0), work); !errors.Is(err, errOver) {
		t.Errorf("elector's error: %v", err)
	}
	stopped := errors.New("stopped")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(stopped)
	if err := tenure.Lead(ctx, newScriptedElector(1), work); !errors.Is(err, stopped) {
		t.Errorf("ctx's cause: %v", err)
	}
}

// Work that is done is not started again, and its grant is given up.
func TestLeadDone(t *testing.T) {
	for _, done := range []error{tenure.ErrDone, fmt.Errorf("all migrated: %w", tenure.ErrDone)} {
		e := newScriptedElector(2)
		err := tenure.Lead(t.Context(), e, func(context.Context, *tenure.Term) error { return done }, quiet())
		if err != nil || len(e.grants) != 1 {
			t.Fatalf("Lead: %v after %d terms", err, len(e.grants))
		}
		wantEnded(t, e.grants[0].term, tenure.ErrResigned)
		if _, released := e.grants[0].told(); !slices.Equal(released, []string{""}) {
			t.Errorf("released to %q", released)
		}
	}
}

// Work learns of the end of its term, and why; what it led is given up when it
// has returned and not before, however long it takes.
func TestLeadReleasesAfterWork(t *testing.T) {
	for _, reason := range []error{tenure.ErrExpired, tenure.ErrLost, tenure.ErrUnhealthy, tenure.ErrResigned} {
		synctest.Test(t, func(t *testing.T) {
			e := newScriptedElector(1)
			e.prepare = func(g *scriptedGrant) {
				time.AfterFunc(time.Minute, func() { g.end(reason) })
			}
			err := tenure.Lead(t.Context(), e, func(ctx context.Context, term *tenure.Term) error {
				<-ctx.Done()
				var ended *tenure.EndedError
				if c := context.Cause(ctx); !errors.As(c, &ended) || !errors.Is(c, reason) {
					t.Errorf("work's context ended with %v, want %v", c, reason)
				}
				time.Sleep(time.Hour)
				if _, released := e.grants[0].told(); len(released) > 0 {
					t.Error("released while work runs")
				}
				return nil
			}, quiet())
			if !errors.Is(err, errOver) {
				t.Error(err)
			}
			if _, released := e.grants[0].told(); len(released) != 1 {
				t.Errorf("released %d times", len(released))
			}
		})
	}
}

// Inside Lead, Resign and TransferTo end the term at once; the release follows
// when work has returned, and names the successor.
func TestLeadGivesUpLater(t *testing.T) {
	for _, tt := range []struct {
		name   string
		giveUp func(context.Context, *tenure.Term) error
		reason error
		to     string
	}{
		{"resign", func(ctx context.Context, t *tenure.Term) error { return t.Resign(ctx) }, tenure.ErrResigned, ""},
		{"transfer", func(ctx context.Context, t *tenure.Term) error { return t.TransferTo(ctx, "b") }, tenure.ErrTransferred, "b"},
		{"transfer, then resign", func(ctx context.Context, t *tenure.Term) error {
			return errors.Join(t.TransferTo(ctx, "b"), t.Resign(ctx))
		}, tenure.ErrTransferred, "b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newScriptedElector(1)
				err := tenure.Lead(t.Context(), e, func(ctx context.Context, term *tenure.Term) error {
					if err := tt.giveUp(ctx, term); err != nil {
						t.Error(err)
					}
					wantEnded(t, term, tt.reason)
					<-ctx.Done()
					time.Sleep(time.Hour)
					if _, released := e.grants[0].told(); len(released) > 0 {
						t.Error("released while work runs")
					}
					return nil
				}, quiet())
				if !errors.Is(err, errOver) {
					t.Error(err)
				}
				if _, released := e.grants[0].told(); !slices.Equal(released, []string{tt.to}) {
					t.Errorf("released to %q, want %q", released, tt.to)
				}
			})
		})
	}
}

// The successor is known before the term ends: work that returns at once, while
// TransferTo is still at it, does not leave the group to whoever is next.
func TestLeadTransferRace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newScriptedElector(1)
		e.prepare = func(g *scriptedGrant) { g.slow = time.Hour }
		transferred := make(chan error, 1)
		err := tenure.Lead(t.Context(), e, func(ctx context.Context, term *tenure.Term) error {
			go func() { transferred <- term.TransferTo(context.Background(), "b") }()
			<-ctx.Done()
			return nil
		}, quiet())
		if !errors.Is(err, errOver) {
			t.Error(err)
		}
		if _, released := e.grants[0].told(); !slices.Equal(released, []string{"b"}) {
			t.Errorf("released to %q", released)
		}
		if err := <-transferred; err != nil {
			t.Error(err)
		}
	})
}

// When Lead is told to stop, so is work; the term ends at once, and the group is
// given up although the context has ended. That is no trouble to warn of.
func TestLeadStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newScriptedElector(2)
		var log logbook
		stopped := errors.New("stopped")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(stopped) })
		err := tenure.Lead(ctx, e, func(ctx context.Context, term *tenure.Term) error {
			<-ctx.Done()
			synctest.Wait()
			wantEnded(t, term, tenure.ErrResigned)
			return ctx.Err()
		}, log.option())
		if !errors.Is(err, stopped) {
			t.Errorf("Lead: %v, want the cause of its context", err)
		}
		if _, released := e.grants[0].told(); len(released) != 1 || len(e.grants) != 1 {
			t.Errorf("released %d times, %d terms", len(released), len(e.grants))
		}
		if e.grants[0].tooLate {
			t.Error("the release came with a context that had ended")
		}
		if log.String() != "" {
			t.Errorf("it warns: %s", &log)
		}
	})
}

// A release that is not answered holds Lead up for five seconds, and is said.
func TestLeadReleaseHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newScriptedElector(1)
		e.prepare = func(g *scriptedGrant) { g.hang = true }
		var log logbook
		start := time.Now()
		err := tenure.Lead(t.Context(), e, func(context.Context, *tenure.Term) error { return tenure.ErrDone }, log.option())
		if err != nil || time.Since(start) != 5*time.Second {
			t.Errorf("Lead: %v after %v, want nil after 5s", err, time.Since(start))
		}
		if !strings.Contains(log.String(), "release not confirmed") {
			t.Errorf("it does not say so: %s", &log)
		}
	})
}

// Every shared sink is sealed with the term's stamp before work begins.
func TestLeadSeals(t *testing.T) {
	var one, two tenuretest.Sink
	e := newScriptedElector(1)
	err := tenure.Lead(t.Context(), e, func(_ context.Context, term *tenure.Term) error {
		for _, s := range []*tenuretest.Sink{&one, &two} {
			if s.Mark().Token != term.Token() {
				t.Errorf("work begins, and a sink is at token %d", s.Mark().Token)
			}
		}
		return tenure.ErrDone
	}, tenure.WithSinks(&one), tenure.WithSinks(&two), quiet())
	if err != nil {
		t.Error(err)
	}
}

// A sink that refuses or hangs keeps work from beginning: the grant is given up,
// the reason said, and Lead campaigns again after a pause.
func TestLeadSealFails(t *testing.T) {
	for _, tt := range []struct {
		name string
		sink sealerFunc
		says string
	}{
		{"refuses", func(_ context.Context, s fence.Stamp) error {
			return &fence.StaleError{Stamp: s, Mark: fence.Mark{Token: 99}}
		}, "the sink has seen token 99"},
		{"hangs", func(ctx context.Context, _ fence.Stamp) error { <-ctx.Done(); return ctx.Err() }, "deadline exceeded"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newScriptedElector(3)
				var log logbook
				err := tenure.Lead(t.Context(), e, func(context.Context, *tenure.Term) error {
					t.Error("work runs with a sink that is not sealed")
					return nil
				}, tenure.WithSinks(tt.sink), tenure.WithSealTimeout(2*time.Second), tenure.WithBackoff(time.Second, time.Second), log.option())
				if !errors.Is(err, errOver) {
					t.Error(err)
				}
				for i, g := range e.grants {
					if _, released := g.told(); len(released) != 1 {
						t.Errorf("term %d was released %d times", i+1, len(released))
					}
					if i > 0 && e.at[i]-e.at[i-1] < time.Second {
						t.Errorf("term %d began %v after the one before", i+1, e.at[i]-e.at[i-1])
					}
					if i > 0 && e.at[i]-e.at[i-1] > 3*time.Second {
						t.Errorf("term %d: the seal was not given up after its 2s", i+1)
					}
				}
				if !strings.Contains(log.String(), tt.says) || !strings.Contains(log.String(), "sealing sink 1 of 1") {
					t.Errorf("it does not say why: %s", &log)
				}
			})
		})
	}
}

// A refused seal that proves a loss of data ends Lead: it gives the group up and does
// not campaign again. It asks the engine until it is answered.
func TestLeadDataLost(t *testing.T) {
	for name, refusal := range map[string]func(fence.Stamp) error{
		"stale": func(s fence.Stamp) error { return &fence.StaleError{Stamp: s, Mark: fence.Mark{Token: 99}} },
		"clone": func(s fence.Stamp) error { return &fence.CloneError{Stamp: s, Mark: fence.Mark{Token: 99}} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newScriptedElector(3)
				e.prepare = func(g *scriptedGrant) {
					g.suspicion = []error{errors.New("no answer"), fmt.Errorf("it is so: %w", tenure.ErrDataLost)}
				}
				err := tenure.Lead(t.Context(), e, func(context.Context, *tenure.Term) error {
					t.Error("work runs")
					return nil
				}, tenure.WithSinks(sealerFunc(func(_ context.Context, s fence.Stamp) error { return refusal(s) })), quiet())
				if !errors.Is(err, tenure.ErrDataLost) || !errors.Is(err, fence.ErrRefused) {
					t.Errorf("Lead: %v", err)
				}
				if len(e.grants) != 1 {
					t.Fatalf("it campaigned %d times", len(e.grants))
				}
				g := e.grants[0]
				if _, released := g.told(); !slices.Equal(released, []string{""}) {
					t.Errorf("released to %q", released)
				}
				if !slices.Equal(g.suspected, []fence.Token{99, 99}) {
					t.Errorf("the engine was asked about %v", g.suspected)
				}
			})
		})
	}
}

// Trust bounds the sealing too: a leader does not wait for a sink while another
// may lead.
func TestLeadSealBoundByTrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newScriptedElector(1)
		e.trusted = 3 * time.Second
		var took time.Duration
		hang := sealerFunc(func(ctx context.Context, _ fence.Stamp) error {
			start := time.Now()
			<-ctx.Done()
			took = time.Since(start)
			return ctx.Err()
		})
		_ = tenure.Lead(t.Context(), e, func(context.Context, *tenure.Term) error { return nil },
			tenure.WithSinks(hang), tenure.WithSealTimeout(time.Hour), quiet())
		if took != 3*time.Second {
			t.Errorf("the sink was waited for %v, with 3s of trust", took)
		}
	})
}

// Work that gives up is started again later, each time after a longer pause, up
// to the bound; a term that went well for longer than that starts over.
func TestLeadBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const least, most, terms, well = 100 * time.Millisecond, 10 * time.Second, 24, 20
		e := newScriptedElector(terms)
		var log logbook
		_ = tenure.Lead(t.Context(), e, func(_ context.Context, term *tenure.Term) error {
			if term.Token() == well {
				time.Sleep(most + 1)
			}
			return errors.New("no such table")
		}, tenure.WithBackoff(least, most), log.option())
		longest := time.Duration(0)
		for i := 1; i < terms; i++ {
			pause, failures := e.at[i]-e.at[i-1], i
			if i == well {
				pause -= most + 1
			}
			if i >= well {
				failures = i - well + 1
			}
			ceiling := most
			if failures <= 7 {
				ceiling = min(most, least<<(failures-1))
			}
			if pause < least || pause > ceiling {
				t.Errorf("pause %d, after %d failures in a row, is %v: want %v to %v", i, failures, pause, least, ceiling)
			}
			longest = max(longest, pause)
		}
		if longest < most/10 {
			t.Errorf("the pauses do not grow: the longest is %v", longest)
		}
		if n := strings.Count(log.String(), "no such table"); n != terms {
			t.Errorf("it says why %d times, want %d", n, terms)
		}
	})
}

// A pause does not outlast its context.
func TestLeadStoppedInPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		err := tenure.Lead(ctx, newScriptedElector(9), func(context.Context, *tenure.Term) error {
			return errors.New("fails")
		}, tenure.WithBackoff(time.Hour, time.Hour), quiet())
		if d := time.Since(start); !errors.Is(err, context.DeadlineExceeded) || d != time.Second {
			t.Errorf("Lead: %v after %v", err, d)
		}
	})
}

// Whoever lost its term to the weather stands in line again at once.
func TestLeadNoPauseAfterLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, reason := range []error{tenure.ErrExpired, tenure.ErrLost} {
			e := newScriptedElector(5)
			e.prepare = func(g *scriptedGrant) { g.end(reason) }
			start := time.Now()
			_ = tenure.Lead(t.Context(), e, func(ctx context.Context, _ *tenure.Term) error {
				<-ctx.Done()
				return ctx.Err()
			}, quiet())
			if d := time.Since(start); d > 0 || len(e.grants) != 5 {
				t.Errorf("%v: %d terms took %v", reason, len(e.grants), d)
			}
		}
	})
}

// Whoever handed over, or was asked to step down, stands in line again at once, and
// the next failure is the first.
func TestLeadNoPauseAfterHandover(t *testing.T) {
	for name, end := range map[string]func(*scriptedElector, *tenure.Term) error{
		"asked to step down": func(e *scriptedElector, _ *tenure.Term) error {
			e.grants[len(e.grants)-1].end(tenure.ErrResigned)
			return nil
		},
		"asked to transfer": func(e *scriptedElector, _ *tenure.Term) error {
			e.grants[len(e.grants)-1].end(tenure.ErrTransferred)
			return nil
		},
		"transfers": func(_ *scriptedElector, t *tenure.Term) error { return t.TransferTo(context.Background(), "b") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const least, terms = time.Second, 9
				e := newScriptedElector(terms)
				_ = tenure.Lead(t.Context(), e, func(ctx context.Context, term *tenure.Term) error {
					if term.Token()%3 == 0 {
						return errors.New("no such table")
					}
					if err := end(e, term); err != nil {
						t.Error(err)
					}
					<-ctx.Done()
					return ctx.Err()
				}, tenure.WithBackoff(least, time.Hour), quiet())
				for i := 1; i < terms; i++ {
					want := time.Duration(0)
					if i%3 == 0 {
						want = least // as after the first failure
					}
					if pause := e.at[i] - e.at[i-1]; pause != want {
						t.Errorf("pause %d is %v, want %v", i, pause, want)
					}
				}
			})
		})
	}
}

// Work that resigns has not failed: others go first, and the pause does not grow.
func TestLeadResignedByWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const least, terms = time.Second, 9
		e := newScriptedElector(terms)
		_ = tenure.Lead(t.Context(), e, func(ctx context.Context, term *tenure.Term) error {
			return term.Resign(ctx)
		}, tenure.WithBackoff(least, time.Hour), quiet())
		for i := 1; i < terms; i++ {
			if pause := e.at[i] - e.at[i-1]; pause != least {
				t.Errorf("pause %d is %v, want %v", i, pause, least)
			}
		}
	})
}

// Of two transfers at once one succeeds, and the other says that it did not.
func TestTransferTwice(t *testing.T) {
	for _, supervised := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			e := newScriptedElector(1)
			transfer := func(term *tenure.Term) {
				answers := make(map[string]error)
				var mu sync.Mutex
				var all sync.WaitGroup
				for _, to := range []string{"b", "c"} {
					all.Go(func() {
						err := term.TransferTo(context.Background(), to)
						mu.Lock()
						defer mu.Unlock()
						answers[to] = err
					})
				}
				all.Wait()
				var ended *tenure.EndedError
				if (answers["b"] == nil) == (answers["c"] == nil) || !errors.As(errors.Join(answers["b"], answers["c"]), &ended) {
					t.Errorf("answered %v", answers)
				}
				winner := "b"
				if answers["b"] != nil {
					winner = "c"
				}
				time.AfterFunc(time.Second, func() {
					if _, released := e.grants[0].told(); !slices.Equal(released, []string{winner}) {
						t.Errorf("%q was told that it succeeds, but the group was released to %q", winner, released)
					}
				})
			}
			if !supervised {
				term, err := e.Campaign(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				transfer(term)
			} else {
				_ = tenure.Lead(t.Context(), e, func(_ context.Context, term *tenure.Term) error {
					transfer(term)
					return nil
				}, quiet())
			}
			time.Sleep(2 * time.Second)
		})
	}
}

// A panic of work, and its Goexit, go through Lead; the grant is given up on the
// way.
func TestLeadPanics(t *testing.T) {
	for name, leave := range map[string]func(){
		"panic":  func() { panic("disk on fire") },
		"goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			e := newScriptedElector(2)
			recovered := make(chan any, 1)
			go func() {
				returned := false
				defer func() {
					if returned {
						t.Error("Lead returned")
					}
					recovered <- recover()
				}()
				_ = tenure.Lead(t.Context(), e, func(context.Context, *tenure.Term) error {
					leave()
					return nil
				}, quiet())
				returned = true
			}()
			if r := <-recovered; (r != nil) != (name == "panic") || r != nil && r != "disk on fire" {
				t.Errorf("recovered %v", r)
			}
			wantEnded(t, e.grants[0].term, tenure.ErrResigned)
			if _, released := e.grants[0].told(); len(released) != 1 {
				t.Errorf("released %d times", len(released))
			}
		})
	}
}

// Without WithLog, Lead speaks to slog's default at the time it is called.
func TestLeadDefaultLog(t *testing.T) {
	var log logbook
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	e := newScriptedElector(1)
	e.prepare = func(g *scriptedGrant) { g.releaseErr = errors.New("no quorum") }
	if err := tenure.Lead(t.Context(), e, func(context.Context, *tenure.Term) error { return tenure.ErrDone }); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "no quorum") {
		t.Errorf("said: %s", &log)
	}
}
