package tenure

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tenurehq/tenure/fence"
)

// An Option changes how Lead goes about it.
type Option func(*leadConfig)

type leadConfig struct {
	sinks       []fence.Sealer
	log         *slog.Logger
	sealTimeout time.Duration
	backoffMin  time.Duration
	backoffMax  time.Duration
}

// WithSinks names the sinks that all leaders of the group share. Each is sealed
// before work begins; if one refuses or cannot be reached, Lead resigns, backs
// off and campaigns again. If a refusal proves that the engine lost data, Lead
// returns ErrDataLost instead.
func WithSinks(sinks ...fence.Sealer) Option {
	return func(c *leadConfig) { c.sinks = append(c.sinks, sinks...) }
}

// WithLog sends what Lead has to say elsewhere than to slog.Default.
func WithLog(log *slog.Logger) Option { return func(c *leadConfig) { c.log = log } }

// WithSealTimeout bounds the sealing of all sinks together. Default 5 s; trust
// bounds it too.
func WithSealTimeout(d time.Duration) Option {
	return func(c *leadConfig) { c.sealTimeout = d }
}

// WithBackoff bounds the pause after work that failed or gave up: exponential
// with full jitter. Default 200 ms to 30 s; a term that outlived the larger
// bound starts it anew.
func WithBackoff(least, most time.Duration) Option {
	return func(c *leadConfig) { c.backoffMin, c.backoffMax = least, most }
}

// releaseTimeout bounds the last call of a term, which runs even when ctx has
// ended: a group that is given up is free at once, one that is not only when the
// session expires.
const releaseTimeout = 5 * time.Second

// Lead campaigns and runs work for each term won, until ctx ends. It returns
// nil when work returned ErrDone, and otherwise why it stopped: the cause of
// ctx, or the elector's error.
//
// At most one process of the fleet is in work with a term that passes
// Term.Check. The context that work gets ends, with an EndedError as its cause,
// when it no longer may be; work should then return soon. The grant is given up
// only after work has returned, so on a resignation or a transfer the next
// leader starts after this one has stopped. There is no IsLeader: an answer
// would be out of date when it is read.
//
// Work that returns before its term ended has given up: Lead resigns, says why,
// pauses (so that failing work does not spin, and another process gets its
// chance) and campaigns again. A term that was transferred, or that ended because
// an operator asked for it, is no failure: Lead campaigns again at once. Work that
// panics gives the grant up and takes the panic along.
func Lead(ctx context.Context, e Elector, work func(context.Context, *Term) error, opts ...Option) error {
	cfg := leadConfig{sealTimeout: 5 * time.Second, backoffMin: 200 * time.Millisecond, backoffMax: 30 * time.Second}
	for i, o := range opts {
		if o == nil {
			return fmt.Errorf("tenure: Lead: option %d is nil", i+1)
		}
		o(&cfg)
	}
	if cfg.log == nil {
		cfg.log = slog.Default()
	}
	switch {
	case ctx == nil:
		return errNoContext
	case isNil(e):
		return errors.New("tenure: Lead: the elector is nil")
	case work == nil:
		return errors.New("tenure: Lead: work is nil")
	case slices.ContainsFunc(cfg.sinks, func(s fence.Sealer) bool { return isNil(s) }):
		return errors.New("tenure: Lead: a sink is nil")
	case cfg.sealTimeout <= 0:
		return fmt.Errorf("tenure: Lead: seal timeout %v: must be positive", cfg.sealTimeout)
	case cfg.backoffMin <= 0 || cfg.backoffMax < cfg.backoffMin:
		return fmt.Errorf("tenure: Lead: backoff from %v to %v: must be positive and not fall", cfg.backoffMin, cfg.backoffMax)
	}

	failures := 0
	for {
		term, err := e.Campaign(ctx)
		if err != nil {
			return err
		}
		began := time.Now()
		over, err := cfg.serve(ctx, term, work)
		switch {
		case errors.Is(err, ErrDone):
			return nil
		case errors.Is(err, ErrDataLost):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case over && term.orderly():
			// Not a failure of this process: campaign again at once. A session that
			// does not campaign is no successor.
			failures = 0
			continue
		case over && err == nil:
			// Work resigned: others go first, and the next failure is the first.
			failures = 0
		}
		if time.Since(began) > cfg.backoffMax {
			failures = 0
		}
		pause := cfg.backoff(failures)
		failures++
		cfg.log.Warn("tenure: term given up", "group", term.Group(), "token", term.Token(), "error", err, "again_in", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// backoff is exponential with full jitter, but never below the least: another
// candidate is to have its chance.
func (c *leadConfig) backoff(failures int) time.Duration {
	ceiling := c.backoffMax
	if failures < 62 && c.backoffMin < ceiling>>failures {
		ceiling = c.backoffMin << failures
	}
	return c.backoffMin + rand.N(ceiling-c.backoffMin+1)
}

// serve runs work for one term and gives the grant up after it, however it
// ends. over: the term ended before work returned.
func (c *leadConfig) serve(ctx context.Context, term *Term, work func(context.Context, *Term) error) (over bool, err error) {
	term.supervise()
	wctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stopTelling := context.AfterFunc(term.Context(), func() { cancel(context.Cause(term.Context())) })
	defer stopTelling()
	stopResigning := context.AfterFunc(ctx, func() { term.endHere(ErrResigned) })
	defer stopResigning()
	defer func() {
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		if err := term.release(rctx); err != nil {
			c.log.Warn("tenure: release not confirmed", "group", term.Group(), "token", term.Token(), "error", err)
		}
	}()

	if len(c.sinks) > 0 {
		sctx, cancel := context.WithTimeout(wctx, min(c.sealTimeout, term.Remaining()))
		err := term.Seal(sctx, c.sinks...)
		cancel()
		if err != nil {
			return term.ended.Load(), err
		}
	}
	err = work(wctx, term)
	return term.ended.Load(), err
}
