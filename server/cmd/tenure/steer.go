package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/operator"
	"github.com/tenurehq/tenure/server/service"
)

// request is what the flags of step-down and transfer say.
type request struct {
	d        desk
	order    operator.Order
	coolDown time.Duration
	token    string
	force    bool
	yes      bool
}

func (q *request) flags(f *pflag.FlagSet) {
	f.StringVar(&q.token, "token", "", "the term that is meant: another leader is left alone (default the one that leads now)")
	f.StringVar(&q.order.Reason, "reason", "", "for the leader's log")
	f.DurationVar(&q.order.Wait, "wait", 15*time.Second, "how long to wait for the leader's answer")
	f.BoolVar(&q.yes, "yes", false, "do not ask")
}

func newStepDown(env func(string) (string, bool)) *cobra.Command {
	q := &request{order: operator.Order{Verb: lease.StepDown}}
	cmd := q.d.verb(&cobra.Command{
		Use:   "step-down GROUP",
		Short: "Ask a leader to give up its group",
		Long: `Ask the leader of a group to give it up. It learns of it with its next beat, stops its
work, and answers; the next in line follows. Only the term that was shown is meant: a
newer leader is not deposed by mistake.

--force does not ask. It closes the leader's whole session, with everything else that it
leads, while it goes on believing for up to its TTL: only fencing protects what it
writes to.

Exit codes: 3 nobody leads, or the leader refused; 4 another term than --token leads;
6 it has not answered yet.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			q.order.CoolDown = q.coolDown
			return q.run(cmd, args[0])
		},
	}, env, aGroup)
	q.flags(cmd.Flags())
	cmd.Flags().DurationVar(&q.coolDown, "cool-down", 0, "how long the node is not to lead the group again")
	cmd.Flags().BoolVar(&q.force, "force", false, "close the leader's session instead of asking")
	return cmd
}

func newTransfer(env func(string) (string, bool)) *cobra.Command {
	q := &request{order: operator.Order{Verb: lease.Transfer}}
	cmd := q.d.verb(&cobra.Command{
		Use:   "transfer GROUP NODE",
		Short: "Ask a leader to hand its group to a candidate in line",
		Long: `Ask the leader of a group to hand it to a node that stands in line for it. The leader
stops its work, then the successor begins, with nobody in between.

Exit codes: 3 nobody leads, NODE is no candidate, the leader refused, or another node leads
afterwards; 4 another term than --token leads; 6 the leader has not answered yet.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := nodeValid(args[1]); err != nil {
				return err
			}
			q.order.To = args[1]
			return q.run(cmd, args[0])
		},
	}, env, aGroup, aCandidate)
	q.flags(cmd.Flags())
	return cmd
}

func (q *request) validate(group string) (want fence.Token, err error) {
	if err := groupsValid(group); err != nil {
		return 0, err
	}
	switch {
	case len(q.order.Reason) > operator.MaxReason:
		err = fmt.Errorf("reason: at most %d bytes", operator.MaxReason)
	case q.order.CoolDown < 0 || q.order.CoolDown > operator.MaxCoolDown:
		err = fmt.Errorf("cool-down: from 0 to %v", operator.MaxCoolDown)
	case q.order.Wait < 0 || q.order.Wait > 10*time.Minute:
		err = errors.New("wait: from 0 to 10m")
	case q.token != "":
		want, err = fence.ParseToken(q.token)
	}
	if err != nil {
		return 0, cli.Exit(exitUsage, err)
	}
	return want, nil
}

func (q *request) run(cmd *cobra.Command, group string) error {
	want, err := q.validate(group)
	if err != nil {
		return err
	}
	return q.d.with(cmd, func(ctx context.Context, s operator.Store) error {
		v, err := read(ctx, s, group)
		switch {
		case err != nil:
			return err
		case want != 0 && want != v.Token:
			return cli.Exit(exitFenced, fmt.Errorf("the term that is meant (%d) is not the newest: %w; look again before you act", want, whoLeads(v)))
		case v.State != tenure.Led:
			return cli.Exit(exitNo, noLeader(v))
		}
		if q.order.Verb == lease.Transfer {
			if err := q.successor(ctx, s, v); err != nil {
				return err
			}
		}
		if q.force {
			return q.close(ctx, cmd, s, v)
		}
		cli.Say(cmd, "%s; it will be asked to %s", whoLeads(v), q.what())
		if err := cli.Confirm(cmd, q.yes); err != nil {
			return err
		}
		return q.ask(ctx, cmd, s, v)
	})
}

func (q *request) what() string {
	what := "give up"
	if q.order.Verb == lease.Transfer {
		what = "hand over to " + q.order.To
	}
	if q.order.CoolDown > 0 {
		what += fmt.Sprintf(", and not to lead it again for %v", q.order.CoolDown)
	}
	return what
}

func whoLeads(v lease.View) error {
	if v.State != tenure.Led {
		return fmt.Errorf("group %q has no leader (newest token %d)", v.Group, v.Token)
	}
	lasts := ""
	if n := len(v.Terms); n > 0 {
		lasts = ", since " + age(v.Terms[n-1].Begin)
	}
	return fmt.Errorf("group %q is led by %s (token %d%s)", v.Group, v.Candidate.ID, v.Token, lasts)
}

// successor refuses a transfer that cannot work before anybody is disturbed.
func (q *request) successor(ctx context.Context, s operator.Store, v lease.View) error {
	if q.order.To == v.Candidate.ID {
		return cli.Exit(exitNo, fmt.Errorf("node %q leads group %q already", q.order.To, v.Group))
	}
	err := s.Bar(ctx, v.Group, q.order.To)
	var bar *lease.BarError
	if errors.As(err, &bar) {
		return cli.Exit(exitNo, err)
	}
	if err != nil {
		return err
	}
	to, err := s.Newest(ctx, v.Group, q.order.To)
	if err == nil && to.ID == "" {
		err = cli.Exit(exitNo, fmt.Errorf("node %q does not stand in line for group %q: see `tenure candidates %s`", q.order.To, v.Group, v.Group))
	}
	return err
}

func (q *request) ask(ctx context.Context, cmd *cobra.Command, s operator.Store, v lease.View) error {
	cooled := ""
	if q.order.CoolDown > 0 {
		var err error
		cooled, err = s.Cool(ctx, v.Group, v.Candidate.ID, q.order.CoolDown)
		switch {
		case denied(err):
			cli.Say(cmd, "the cool-down is not laid down, for that is an admin's: the leader is asked to keep it")
		case err != nil:
			return err
		}
	}
	asked, err := s.Ask(ctx, v, q.order)
	if cooled != "" && (err != nil && lease.Definite(err) || asked.Outcome == lease.Refused) {
		err = errors.Join(err, s.Warm(ctx, v.Group, v.Candidate.ID, cooled))
	}
	if err != nil {
		return err
	}
	out := service.SteppedDown{Group: v.Group, Term: v.Token, Outcome: string(asked.Outcome), Detail: asked.Detail}
	if now, err := read(ctx, s, v.Group); err == nil && now.State == tenure.Led {
		out.LeaderNodeID = now.Candidate.ID
	}
	if err := outcomeSheet().One(cmd.OutOrStdout(), &q.d.out, out); err != nil {
		return err
	}
	switch asked.Outcome {
	case lease.Done:
		return nil
	case operator.Waiting:
		return cli.Exit(exitUnavailable, errors.New(asked.Detail))
	case operator.Ended:
		return cli.Exit(exitNo, errors.New(asked.Detail))
	}
	return cli.Exit(exitNo, fmt.Errorf("%s refused: %s", v.Candidate.ID, asked.Detail))
}

// close takes everything from the leader, for there is no other way to take one group.
func (q *request) close(ctx context.Context, cmd *cobra.Command, s operator.Store, v lease.View) error {
	held, err := s.Held(ctx, lease.Scope{"*"}, v.Holder)
	if denied(err) {
		held, err = []string{v.Group}, nil // what else it leads is not ours to see
	}
	if err != nil {
		return err
	}
	out := service.SteppedDown{
		Group: v.Group, Term: v.Token, Outcome: "forced", Detail: "its session was closed; until its TTL has passed it may believe to lead",
	}
	for _, g := range held {
		if g != v.Group {
			out.AlsoEnded = append(out.AlsoEnded, g)
		}
	}
	cli.Say(cmd, "%s; its session will be closed, and it may act on until its TTL has passed: only fencing protects what it writes to", whoLeads(v))
	if len(out.AlsoEnded) > 0 {
		cli.Say(cmd, "with it end its terms of %s", strings.Join(out.AlsoEnded, ", "))
	}
	if err := cli.Confirm(cmd, q.yes); err != nil {
		return err
	}
	if q.order.CoolDown > 0 {
		if _, err := s.Cool(ctx, v.Group, v.Candidate.ID, q.order.CoolDown); err != nil {
			return err
		}
	}
	call, cancel := context.WithTimeout(ctx, s.Call)
	defer cancel()
	if err := s.Close(call, v.Holder, lease.Forced); err != nil {
		return err
	}
	return outcomeSheet().One(cmd.OutOrStdout(), &q.d.out, out)
}

func outcomeSheet() cli.Sheet[service.SteppedDown] {
	return cli.Sheet[service.SteppedDown]{
		Columns: []cli.Column[service.SteppedDown]{
			{Head: "GROUP", Cell: func(o service.SteppedDown) string { return o.Group }},
			{Head: "TERM", Cell: func(o service.SteppedDown) string { return o.Term.String() }},
			{Head: "OUTCOME", Cell: func(o service.SteppedDown) string { return o.Outcome }},
			{Head: "LEADER NOW", Cell: func(o service.SteppedDown) string { return dash(o.LeaderNodeID) }},
			{Head: "DETAIL", Cell: func(o service.SteppedDown) string { return o.Detail }},
		},
		Name: func(o service.SteppedDown) string { return o.Group },
	}
}
