package lab

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/reference/api"
	fleetclient "github.com/tenurehq/tenure/reference/client"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	ledgerclient "github.com/tenurehq/tenure/reference/ledger/client"
)

// Timeline writes lines with the time on one clock, the host's, since it was made. It
// is safe for concurrent use.
type Timeline struct {
	mu    sync.Mutex
	w     io.Writer
	began clock.Instant
}

// NewTimeline begins at zero.
func NewTimeline(w io.Writer) *Timeline { return &Timeline{w: w, began: clock.System().Now()} }

// Say writes one line, now.
func (t *Timeline) Say(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.ReplaceAll(strings.TrimRight(fmt.Sprintf(format, args...), "\n"), "\n", "\n           ")
	_, _ = fmt.Fprintf(t.w, "%8.3f s %s\n", t.Elapsed().Seconds(), text) // nobody is left to be told
}

// Show writes text as it is.
func (t *Timeline) Show(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, _ = io.WriteString(t.w, text) // nobody is left to be told
}

// Elapsed is the time on it.
func (t *Timeline) Elapsed() time.Duration { return clock.System().Now().Sub(t.began) }

// Narrator watches a fleet from outside, as a visitor could, and says what changes.
type Narrator struct {
	file   labapi.FleetFile
	line   *Timeline
	fleet  *fleetclient.Client
	ledger *ledgerclient.Client

	leader  string
	token   fence.Token
	alone   clock.Instant // since when nobody leads; 0: somebody does
	refused uint64
	pending *change // a change of leader whose story is not complete
	last    summary
}

type change struct {
	id    string
	token fence.Token
	seen  clock.Instant
}

type summary struct {
	at  clock.Instant
	seq uint64
}

// How often the fleet is looked at, and how often a line sums up.
const (
	look  = 50 * time.Millisecond
	sumUp = 5 * time.Second
)

// NewNarrator makes a narrator of the fleet that a file describes.
func NewNarrator(file labapi.FleetFile, line *Timeline) (*Narrator, error) {
	var urls []string
	for _, n := range file.Nodes {
		urls = append(urls, n.URL)
	}
	fleet, err := fleetclient.New(fleetclient.Config{URLs: urls, Timeout: time.Second})
	if err != nil {
		return nil, err
	}
	ledger, err := ledgerclient.New(ledgerclient.Config{URL: file.Ledger.URL, Timeout: time.Second})
	if err != nil {
		return nil, err
	}
	return &Narrator{file: file, line: line, fleet: fleet, ledger: ledger}, nil
}

// Run narrates until ctx ends.
func (n *Narrator) Run(ctx context.Context) {
	defer n.fleet.Close()
	defer n.ledger.Close()
	every := time.NewTicker(look)
	defer every.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		all := n.statuses(ctx)
		if ctx.Err() != nil {
			return
		}
		n.leadership(all)
		n.story(ctx)
		if i%5 == 0 {
			n.refusals(ctx)
		}
		n.sum(all)
	}
}

// statuses asks all nodes; who does not answer is left out.
func (n *Narrator) statuses(ctx context.Context) []api.Status {
	ctx, cancel := context.WithTimeout(ctx, 4*look)
	defer cancel()
	answers := make([]api.Status, len(n.file.Nodes))
	var wait sync.WaitGroup
	for i, node := range n.file.Nodes {
		wait.Go(func() {
			if s, err := n.fleet.Status(ctx, node.URL); err == nil {
				answers[i] = s
			}
		})
	}
	wait.Wait()
	var all []api.Status
	for _, s := range answers {
		if s.NodeID != "" {
			all = append(all, s)
		}
	}
	return all
}

func (n *Narrator) leadership(all []api.Status) {
	var leads *api.Status
	for i, s := range all {
		if s.Role == api.Leader && s.Working && s.FenceToken >= n.token && (leads == nil || s.FenceToken > leads.FenceToken) {
			leads = &all[i]
		}
	}
	now := clock.System().Now()
	switch {
	case leads == nil && n.leader == "" || leads != nil && leads.NodeID == n.leader && leads.FenceToken == n.token:
		n.alone = 0
	case leads == nil:
		// One look can miss a busy leader.
		if n.alone == 0 {
			n.alone = now
		}
		if now.Sub(n.alone) > 4*look {
			n.line.Say("nobody leads %s (%s did, token %d)", n.file.Group, n.leader, n.token)
			n.leader, n.alone = "", 0
		}
	default:
		n.leader, n.token, n.alone = leads.NodeID, leads.FenceToken, 0
		n.pending = &change{leads.NodeID, leads.FenceToken, now}
	}
}

// storyTime is how long the new leader may take to tell how it came to lead.
const storyTime = time.Second

// story says who leads, with what the new leader has recorded about it.
func (n *Narrator) story(ctx context.Context) {
	c := n.pending
	if c == nil {
		return
	}
	said := fmt.Sprintf("%s leads %s token %d", c.id, n.file.Group, c.token)
	ctx, cancel := context.WithTimeout(ctx, 4*look)
	defer cancel()
	all, err := n.fleet.Failovers(ctx)
	for _, f := range all.Items {
		if err == nil && f.Token == c.token && f.TotalUS > 0 {
			n.line.Say("%s%s", said, tell(f))
			n.pending = nil
			return
		}
	}
	if clock.System().Now().Sub(c.seen) > storyTime {
		n.line.Say("%s", said)
		n.pending = nil
	}
}

func tell(f api.Failover) string {
	took := time.Duration(f.TotalUS) * time.Microsecond
	s := fmt.Sprintf(" after %s (%s", brief(took), f.Cause)
	if f.GapUS != nil {
		s += fmt.Sprintf(", handover gap %s", brief(time.Duration(*f.GapUS)*time.Microsecond))
	}
	s += ")"
	for _, p := range f.Phases {
		if p.Over {
			s += fmt.Sprintf("; %s took %s, more than its share", p.Name, brief(time.Duration(p.TookUS)*time.Microsecond))
		}
	}
	return s
}

func brief(d time.Duration) string {
	if d < 0 {
		return "-" + brief(-d)
	}
	if d < 10*time.Millisecond {
		return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
	}
	if d < 10*time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

func (n *Narrator) refusals(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	const most = 5
	r, err := n.ledger.Rejections(ctx, "", most)
	if err != nil {
		return // that the ledger is away is said by others
	}
	for i := len(r.Items) - 1; i >= 0; i-- {
		if item := r.Items[i]; item.ID > n.refused {
			n.line.Say("%s", Refusal(item))
		}
	}
	n.refused = max(n.refused, r.Total)
}

// Refusal is a stale write that the ledger refused, or took without its fence, in words.
func Refusal(r ledgerapi.Rejection) string {
	what := "refused a write"
	if r.Applied {
		what = "has no fence and TOOK a write"
	}
	return fmt.Sprintf("the ledger %s of %s: %s, its token is %d and the highest seen is %d", what, r.Holder, r.Reason, r.Token, r.CurrentToken)
}

func (n *Narrator) sum(all []api.Status) {
	now := clock.System().Now()
	if n.last.at == 0 {
		n.last.at = now
	}
	took := now.Sub(n.last.at)
	if took < sumUp {
		return
	}
	for _, s := range all {
		if s.NodeID != n.leader || s.Role != api.Leader {
			continue
		}
		line := fmt.Sprintf("%s token %d", s.NodeID, s.FenceToken)
		if s.LastTick != nil {
			line += fmt.Sprintf(" · tick %d", s.LastTick.N)
		}
		if n.last.seq > 0 && s.LastSeq >= n.last.seq {
			line += fmt.Sprintf(" · %.0f seq/s, at %d", float64(s.LastSeq-n.last.seq)/took.Seconds(), s.LastSeq)
		}
		line += fmt.Sprintf(" · %d jobs pending · %d refused", s.JobsPending, n.refused)
		n.line.Say("%s", line)
		n.last.seq = s.LastSeq
	}
	n.last.at = now
}
