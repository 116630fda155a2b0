package lab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/tenurehq/tenure/app/fleet/api"
	fleetclient "github.com/tenurehq/tenure/app/fleet/client"
	"github.com/tenurehq/tenure/app/lab/check"
	"github.com/tenurehq/tenure/app/lab/load"
	ledgerapi "github.com/tenurehq/tenure/app/ledger/api"
	ledgerclient "github.com/tenurehq/tenure/app/ledger/client"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/child"
)

// ErrNotSeen: the fleet ran, and something that the demonstration is to show did not
// happen.
var ErrNotSeen = errors.New("not seen")

// demoTTL is the shortest that the engine has.
const demoTTL = 2 * time.Second

// Demo shows why a leader's belief is not enough: the leader is stopped between its
// check and its write, another takes over and seals the ledger, the first goes on with
// the write that it had checked, and is refused. It returns nil only if all of it was
// seen.
func Demo(ctx context.Context, cfg Config, line *Timeline) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 90*time.Second, errors.New("the demonstration took more than 90 s"))
	defer cancel()
	cfg.TTL = demoTTL
	cfg.Event = func(s string) { line.Say("%s", s) }
	f, err := Start(ctx, cfg)
	if err != nil {
		return err
	}
	d := &demo{line: line, file: f.File()}
	line.Say("%s", inventory(d.file))
	err = d.run(ctx, filepath.Join(f.dir, "history"))
	return errors.Join(err, f.Stop())
}

type demo struct {
	line   *Timeline
	file   api.FleetFile
	fleet  *fleetclient.Client
	ledger *ledgerclient.Client
}

func (d *demo) run(ctx context.Context, path string) error {
	var err error
	if d.fleet, err = fleetclient.New(fleetclient.Config{URLs: nodeURLs(d.file), Timeout: time.Second}); err != nil {
		return err
	}
	defer d.fleet.Close()
	if d.ledger, err = ledgerclient.New(ledgerclient.Config{URL: d.file.Ledger.URL, Timeout: time.Second}); err != nil {
		return err
	}
	defer d.ledger.Close()
	old, err := d.leader(ctx, 0)
	if err != nil {
		return err
	}
	d.line.Say("%s leads %s with token %d", old.ID, d.file.Group, old.Token)

	callers, err := d.call(ctx, path)
	if err != nil {
		return err
	}
	return errors.Join(d.story(ctx, old), callers())
}

// story is the demonstration itself, from a leader to its refused write.
func (d *demo) story(ctx context.Context, old fleetclient.Leader) error {
	pid := d.pid(old.ID)
	before, err := d.fleet.Next(ctx, 1)
	if err != nil {
		return fmt.Errorf("%w: a number under token %d: %w", ErrNotSeen, old.Token, err)
	}
	d.line.Say("callers take numbers; %d was given under token %d", before.Last, before.Token)
	if err := d.hold(ctx); err != nil {
		return err
	}
	if err := d.arm(ctx, old.URL); err != nil {
		return err
	}
	if err := await(ctx, "the leader stopping itself", func(context.Context) bool { return child.Paused(pid) }); err != nil {
		return err
	}
	d.line.Say("%s has checked that it leads, and stands still before its write (pid %d, SIGSTOP)", old.ID, pid)

	successor, err := d.leader(ctx, old.Token)
	if err != nil {
		return err
	}
	d.line.Say("%s leads with token %d: %s was silent for too long", successor.ID, successor.Token, old.ID)
	if err := await(ctx, "the ledger's seal", func(ctx context.Context) bool {
		r, err := d.ledger.Resource(ctx, d.file.Group)
		return err == nil && r.Token >= successor.Token
	}); err != nil {
		return err
	}
	d.line.Say("the ledger is sealed: it has seen token %d and takes nothing below", successor.Token)
	// The client remembers the node that stands still: it is to look again first.
	if _, err := d.fleet.Leader(ctx); err != nil {
		return err
	}
	after, err := d.fleet.Next(ctx, 1)
	if err != nil || after.First <= before.Last || after.Token < successor.Token {
		return fmt.Errorf("%w: a larger number under token %d (%+v, %w)", ErrNotSeen, successor.Token, after, err)
	}
	d.line.Say("callers take numbers again; %d was given under token %d", after.Last, after.Token)

	if err := d.hold(ctx); err != nil {
		return err
	}
	process, err := os.FindProcess(pid)
	if err == nil {
		err = child.Resume(process)
	}
	if err != nil {
		return fmt.Errorf("%s cannot be let go on: %w", old.ID, err)
	}
	d.line.Say("%s goes on (SIGCONT), and sends the write that it had checked, with token %d", old.ID, old.Token)
	var refused ledgerapi.Rejection
	if err := await(ctx, "the refusal of the stale write", func(ctx context.Context) bool {
		refused, err = d.refused(ctx, old)
		return err == nil
	}); err != nil {
		return err
	}
	d.line.Say("%s", refusal(refused))
	if refused.Applied {
		return fmt.Errorf("%w: the refusal of the stale write: the ledger took it", ErrNotSeen)
	}
	if err := await(ctx, old.ID+" stepping down", func(ctx context.Context) bool {
		s, err := d.fleet.Status(ctx, old.URL)
		return err == nil && s.Role != api.Leader
	}); err != nil {
		return err
	}
	d.line.Say("%s has stepped down", old.ID)
	return d.hold(ctx)
}

// hold leaves time to read, and to the callers.
func (d *demo) hold(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(2 * time.Second):
		return nil
	}
}

// await looks until what is awaited is there. The bound is generous: a loaded machine
// is no reason to have seen nothing.
func await(ctx context.Context, what string, seen func(context.Context) bool) error {
	const bound = 20 * time.Second
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	for !seen(ctx) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %s, within %v", ErrNotSeen, what, bound)
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}

// leader waits for one whose work has begun, with a higher token.
func (d *demo) leader(ctx context.Context, above fence.Token) (fleetclient.Leader, error) {
	var l fleetclient.Leader
	err := await(ctx, fmt.Sprintf("a leader with a token above %d", above), func(ctx context.Context) bool {
		for _, n := range d.file.Nodes {
			asked, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			s, err := d.fleet.Status(asked, n.URL)
			cancel()
			if err == nil && s.Role == api.Leader && s.Working && s.FenceToken > above {
				l = fleetclient.Leader{ID: s.NodeID, URL: n.URL, Token: s.FenceToken}
				return true
			}
		}
		return false
	})
	return l, err
}

func (d *demo) pid(id string) int {
	for _, n := range d.file.Nodes {
		if n.ID == id {
			return n.PID
		}
	}
	return 0
}

// arm makes the node stop itself at its next write.
func (d *demo) arm(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/lab/pause", http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("the pause cannot be armed: %w", err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the pause cannot be armed: %s", resp.Status)
	}
	return nil
}

func (d *demo) refused(ctx context.Context, old fleetclient.Leader) (ledgerapi.Rejection, error) {
	const most = 50
	r, err := d.ledger.Rejections(ctx, "", most)
	if err != nil {
		return ledgerapi.Rejection{}, err
	}
	for _, item := range r.Items {
		if item.Token == old.Token && item.CurrentToken > old.Token && item.Resource == d.file.Group {
			return item, nil
		}
	}
	return ledgerapi.Rejection{}, ErrNotSeen
}

// call takes numbers in the background. What it returns stops that, and checks that no
// number was given twice.
func (d *demo) call(ctx context.Context, path string) (func() error, error) {
	w, err := check.Create(path, "calls", 0)
	if err != nil {
		return nil, err
	}
	if err := w.Write(check.Run{Experiment: "demo", Group: d.file.Group, Checks: []string{"sequence", "linearizable", "ledger"}}); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	calling, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		_, err := load.Run(calling, load.Config{URLs: nodeURLs(d.file), Rate: 200, Connections: 16, For: 2 * time.Minute, Timeout: time.Second, Calls: w})
		ended <- errors.Join(err, w.Close())
	}()
	return func() error {
		cancel()
		if err := <-ended; err != nil {
			return err
		}
		if err := check.WriteManifest(path); err != nil {
			return err
		}
		r, err := check.Dir(ctx, path, check.Options{DB: d.file.Ledger.DB})
		if err != nil {
			return err
		}
		for _, v := range r.Verdicts {
			if v.Result != check.Pass {
				return fmt.Errorf("%w: a sequence without reuse: %s", ErrNotSeen, v)
			}
		}
		d.line.Say("%d callers' numbers, %d to %d under %d tokens: all rise, none twice; longest silence %.0f ms", r.Callers.Calls, r.Callers.First, r.Callers.Last, r.Callers.Tokens, r.Callers.SilenceMS)
		return nil
	}, nil
}
