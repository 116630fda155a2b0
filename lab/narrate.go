package lab

import (
	"context"
	"fmt"
	"slices"
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

// narrator watches a fleet over its public interfaces and reports changes.
type narrator struct {
	file   labapi.FleetFile
	line   *Timeline
	fleet  *fleetclient.Client
	ledger *ledgerclient.Client

	leader  string
	token   fence.Token
	vacant  clock.Instant // since when nobody leads; 0: somebody does
	changed clock.Instant // when the leader changed, if that was not reported yet
	refused uint64
	summed  clock.Instant // the last summary, and the last number at that time
	lastSeq uint64
}

const (
	lookEvery = 50 * time.Millisecond
	sumEvery  = 5 * time.Second
	// detailTime is how long to wait for the details of a failover.
	detailTime = time.Second
)

func newNarrator(file labapi.FleetFile, line *Timeline) (*narrator, error) {
	fleet, err := fleetclient.New(fleetclient.Config{URLs: nodeURLs(file), Timeout: time.Second})
	if err != nil {
		return nil, err
	}
	ledger, err := ledgerclient.New(ledgerclient.Config{URL: file.Ledger.URL, Timeout: time.Second})
	if err != nil {
		return nil, err
	}
	return &narrator{file: file, line: line, fleet: fleet, ledger: ledger, summed: clock.System().Now()}, nil
}

// run narrates until ctx ends.
func (n *narrator) run(ctx context.Context) {
	defer n.fleet.Close()
	defer n.ledger.Close()
	every := time.NewTicker(lookEvery)
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
		n.announce(ctx)
		if i%5 == 0 {
			n.refusals(ctx)
		}
		n.sum(all)
	}
}

// statuses asks all nodes. Nodes that do not answer are left out.
func (n *narrator) statuses(ctx context.Context) []api.Status {
	ctx, cancel := context.WithTimeout(ctx, 4*lookEvery)
	defer cancel()
	all := make([]api.Status, len(n.file.Nodes))
	var wait sync.WaitGroup
	for i, node := range n.file.Nodes {
		wait.Go(func() { all[i], _ = n.fleet.Status(ctx, node.URL) })
	}
	wait.Wait()
	return slices.DeleteFunc(all, func(s api.Status) bool { return s.NodeID == "" })
}

func (n *narrator) leadership(all []api.Status) {
	var leads *api.Status
	for i, s := range all {
		if s.Role == api.Leader && s.Working && s.FenceToken >= n.token && (leads == nil || s.FenceToken > leads.FenceToken) {
			leads = &all[i]
		}
	}
	now := clock.System().Now()
	switch {
	case leads == nil && n.leader == "" || leads != nil && leads.NodeID == n.leader && leads.FenceToken == n.token:
		n.vacant = 0
	case leads == nil && n.vacant == 0:
		n.vacant = now
	case leads == nil:
		if now.Sub(n.vacant) > 4*lookEvery { // a busy leader may miss one poll
			n.line.Say("nobody leads %s (%s did, token %d)", n.file.Group, n.leader, n.token)
			n.leader, n.vacant = "", 0
		}
	default:
		n.leader, n.token, n.vacant, n.changed = leads.NodeID, leads.FenceToken, 0, now
	}
}

// announce reports who leads, with the details that the new leader has recorded.
func (n *narrator) announce(ctx context.Context) {
	if n.changed == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 4*lookEvery)
	defer cancel()
	details := FailoverDetails(ctx, n.fleet, n.token)
	if details != "" || clock.System().Now().Sub(n.changed) > detailTime {
		n.line.Say("%s leads %s token %d%s", n.leader, n.file.Group, n.token, details)
		n.changed = 0
	}
}

// FailoverDetails says how long the failover to a token took and why it happened, as its leader
// has recorded it; empty: not yet.
func FailoverDetails(ctx context.Context, fleet *fleetclient.Client, token fence.Token) string {
	all, err := fleet.Failovers(ctx)
	i := slices.IndexFunc(all.Items, func(f api.Failover) bool { return f.Token == token && f.TotalUS > 0 })
	if err != nil || i < 0 {
		return ""
	}
	f := all.Items[i]
	s := fmt.Sprintf(" after %s (%s", brief(f.TotalUS), f.Cause)
	if f.GapUS != nil {
		s += ", handover gap " + brief(*f.GapUS)
	}
	s += ")"
	for _, p := range f.Phases {
		if p.Over {
			s += fmt.Sprintf("; %s took %s, longer than planned", p.Name, brief(p.TookUS))
		}
	}
	return s
}

// brief formats microseconds.
func brief(us int64) string {
	switch d := time.Duration(us) * time.Microsecond; {
	case d.Abs() < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(us)/1000)
	case d.Abs() < 10*time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	default:
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
}

func (n *narrator) refusals(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	const most = 5
	r, err := n.ledger.Rejections(ctx, "", most)
	if err != nil {
		return // the fleet reports the end of the ledger
	}
	for _, item := range slices.Backward(r.Items) {
		if item.ID > n.refused {
			n.line.Say("%s", Refusal(item))
		}
	}
	n.refused = max(n.refused, r.Total)
}

// Refusal describes a stale write that the ledger refused or, with fencing off, accepted.
func Refusal(r ledgerapi.Rejection) string {
	what := "refused a write"
	if r.Applied {
		what = "has no fence and TOOK a write"
	}
	return fmt.Sprintf("the ledger %s of %s: %s, its token is %d and the highest seen is %d", what, r.Holder, r.Reason, r.Token, r.CurrentToken)
}

// sum reports from time to time what the leader does.
func (n *narrator) sum(all []api.Status) {
	now := clock.System().Now()
	took := now.Sub(n.summed)
	if took < sumEvery {
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
		if n.lastSeq > 0 && s.LastSeq >= n.lastSeq {
			line += fmt.Sprintf(" · %.0f seq/s, at %d", float64(s.LastSeq-n.lastSeq)/took.Seconds(), s.LastSeq)
		}
		n.line.Say("%s · %d jobs pending · %d refused", line, s.JobsPending, n.refused)
		n.lastSeq = s.LastSeq
	}
	n.summed = now
}
