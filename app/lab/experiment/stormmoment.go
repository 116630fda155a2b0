package experiment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tenurehq/tenure/app/chaos"
	"github.com/tenurehq/tenure/app/fleet/api"
	"github.com/tenurehq/tenure/app/lab/check"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/child"
)

// trap is a node that was told to stop itself at a moment.
type trap struct {
	api.Status
	process *os.Process
}

// moment brings about a change of leader in which a node stops itself at a moment that
// no signal from outside would hit: when it was granted the group and has sealed
// nothing, when it has sealed and done nothing, when it has resigned and still holds the
// group. There it is killed, or stands still until it is late.
func (w *weather) moment(ctx context.Context, b blow) (f chaos.Fault, err error) {
	act, at, _ := strings.Cut(b.Kind, "-")
	l, err := w.chaos.Leader(ctx, 0)
	if err != nil {
		return f, err
	}
	traps, err := w.trapsFor(ctx, at, l)
	if err != nil {
		return chaos.Fault{Target: l.ID}, err
	}
	defer func() {
		err = errors.Join(err, w.disarm(ctx, traps))
		for _, t := range traps {
			_ = t.process.Release()
		}
		if f.Begun > 0 && f.Healed == 0 {
			f.Healed = now()
		}
	}()
	for _, t := range traps {
		if err := w.hook(ctx, http.MethodPost, t.Address+"/lab/pause?at="+at, 0); err != nil {
			return chaos.Fault{Target: t.NodeID}, fmt.Errorf("the pause cannot be armed: %w", err)
		}
	}
	hit, begun, err := w.catch(ctx, b, l, traps)
	if err != nil {
		return chaos.Fault{Target: l.ID}, err
	}
	f = chaos.Fault{Target: hit.NodeID, Token: l.Token, Begun: begun, Shown: chaos.Stopped, PIDs: []int{hit.PID}}
	seen := fmt.Sprintf("pid %d stopped itself when %s (state T)", hit.PID, at)
	if act == "kill" {
		f, err = w.endOf(ctx, f, hit, seen)
		if err == nil { // until then it stood still, and could not see its term end
			err = w.faults.Write(check.Fault{
				Name: b.Kind + ": stood still", PartOf: b.Kind, Class: check.ClassPause, Target: f.Target, Begun: begun, Healed: f.Begun, Evidence: seen,
				Proof: check.Proof{Kind: check.ProofStopped, PIDs: f.PIDs},
			})
		}
		return f, err
	}
	late := ""
	if b.Sealed {
		var mark fence.Token
		// Whoever has sealed has a mark of its own there already.
		r, rerr := w.ledger.Resource(ctx, group)
		if rerr == nil {
			mark, rerr = w.overtaken(ctx, max(r.Token, l.Token))
		}
		if err = rerr; err == nil {
			late = fmt.Sprintf(" until the ledger was sealed with token %d", mark)
		}
	}
	w.until(ctx, f.Begun.Add(b.For))
	if !child.Paused(hit.PID) {
		return f, fmt.Errorf("%w: %s did not stand still to the end", chaos.ErrNoBite, hit.NodeID)
	}
	f.Evidence = seen + late
	f.Set, f.Held = f.Begun, now()
	err = errors.Join(err, w.goOn(ctx, hit))
	f.Healed = now()
	return f, err
}

// trapsFor are those who may come to the moment: the leader to that of resigning, the
// others to those of whoever is next.
func (w *weather) trapsFor(ctx context.Context, at string, l chaos.Leader) ([]trap, error) {
	var of []api.Status
	if at == api.MomentResigning {
		s, ok := w.status(ctx, l.URL)
		if !ok || s.FenceToken != l.Token || s.Role != api.Leader {
			return nil, fmt.Errorf("%w: %s no longer leads", chaos.ErrChanged, l.ID)
		}
		of = append(of, s)
	} else {
		var err error
		if of, err = w.followers(ctx); err != nil {
			return nil, err
		}
	}
	var traps []trap
	for _, s := range of {
		p, err := os.FindProcess(s.PID)
		if err != nil {
			return nil, err
		}
		traps = append(traps, trap{s, p})
	}
	return traps, nil
}

// catch brings the change about and waits until one of them stands still; the others are
// free again then. It looks from the beginning: another fault may bring the change about
// before.
func (w *weather) catch(ctx context.Context, b blow, l chaos.Leader, traps []trap) (trap, clock.Instant, error) {
	changing, stop := context.WithCancel(ctx)
	var failed error
	var trigger sync.WaitGroup
	trigger.Go(func() {
		if b.Trigger == triggerKill {
			// A kill that has begun is not given up: whether it was made must be known.
			if _, failed = w.chaos.Leader(changing, 0); failed == nil {
				var killed chaos.Fault
				killed, failed = w.chaos.KillLeader(ctx)
				w.note(blow{Kind: "kill-leader", Aim: b.Aim, step: b.step}, killed, failed)
			}
			return
		}
		failed = w.hook(changing, http.MethodPost, l.URL+"/resign", l.Token)
	})
	hit, err := w.caught(ctx, traps)
	begun := now()
	stop()
	missed := err != nil
	if !missed {
		// The next to be granted the group must not stop too, and the trigger may take until
		// then: a kill waits for somebody who leads.
		err = w.disarm(ctx, slices.DeleteFunc(slices.Clone(traps), func(t trap) bool { return t.PID == hit.PID }))
	}
	trigger.Wait()
	if missed && failed != nil {
		err = fmt.Errorf("%w: %w", chaos.ErrChanged, failed)
	}
	return hit, begun, err
}

// caught waits until one of them stands still.
func (w *weather) caught(ctx context.Context, traps []trap) (trap, error) {
	bound := 2*w.trial.TTL + 4*time.Second
	for end := now().Add(bound); now() < end; {
		for _, t := range traps {
			if child.Paused(t.PID) {
				return t, nil
			}
		}
		if err := w.hold(ctx, time.Millisecond); err != nil {
			return trap{}, err
		}
	}
	return trap{}, fmt.Errorf("%w: nobody came to that moment within %v", chaos.ErrNoBite, bound)
}

// endOf kills a node that stands still.
func (w *weather) endOf(ctx context.Context, f chaos.Fault, hit trap, seen string) (chaos.Fault, error) {
	f.Begun = now()
	err := hit.process.Kill()
	if err == nil {
		err = await(ctx, hit.NodeID+" gone", func(context.Context) bool {
			return gone(hit.process)
		})
	}
	f.Healed = now()
	if err != nil {
		return f, fmt.Errorf("%s cannot be killed: %w", hit.NodeID, err)
	}
	f.Shown = chaos.Exited
	f.Evidence = fmt.Sprintf("%s, and pid %d is gone", seen, hit.PID)
	return f, nil
}

// disarm takes back what has not come: whoever stopped itself meanwhile goes on.
func (w *weather) disarm(ctx context.Context, traps []trap) error {
	const bound = 10 * time.Second
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	defer cancel()
	var all error
	for _, t := range traps {
		for !gone(t.process) {
			err := w.goOn(ctx, t)
			if err == nil {
				err = w.hook(ctx, http.MethodDelete, t.Address+"/lab/pause", 0)
			}
			if err == nil && !child.Paused(t.PID) {
				break
			}
			if w.hold(ctx, 10*time.Millisecond) != nil {
				all = errors.Join(all, fmt.Errorf("%w: %s may stop itself, or stand still: %w", chaos.ErrNotHealed, t.NodeID, err))
				break
			}
		}
	}
	return all
}

// goOn lets a node go on that stands still.
func (w *weather) goOn(ctx context.Context, t trap) error {
	for child.Paused(t.PID) && !gone(t.process) {
		if err := child.Resume(t.process); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("%w: %s stands still: %w", chaos.ErrNotHealed, t.NodeID, err)
		}
		if w.hold(context.WithoutCancel(ctx), time.Millisecond) != nil {
			break
		}
	}
	return nil
}

func gone(p *os.Process) bool { return errors.Is(p.Signal(syscall.Signal(0)), os.ErrProcessDone) }

// hook calls a node, about a term if a token is given.
func (w *weather) hook(ctx context.Context, method, url string, of fence.Token) error {
	req, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return err
	}
	if of > 0 {
		req.Header.Set("If-Match", fmt.Sprintf("%q", fmt.Sprint(of)))
	}
	resp, err := w.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	const few = 300
	if body, _ := io.ReadAll(io.LimitReader(resp.Body, few)); resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %s: %s", method, url, resp.Status, body)
	}
	return nil
}
