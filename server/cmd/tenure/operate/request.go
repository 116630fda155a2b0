// Package operate has the commands that change what runs: they ask leaders to give up or
// hand over, and set cordons and policies.
package operate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/operator"
	"github.com/tenurehq/tenure/server/service"
	"github.com/tenurehq/tenure/server/storecli"
	"github.com/tenurehq/tenure/store"
)

// Commands returns the commands.
func Commands(env cli.Env) []*cobra.Command {
	return []*cobra.Command{newStepDown(env), newTransfer(env), newCordon(env), newUncordon(env), newDrain(env), newPin(env), newWeigh(env), newPolicy(env)}
}

const maxWait = 10 * time.Minute

// request holds the flags of step-down and transfer.
type request struct {
	order operator.Order
	token string
	want  fence.Token // the parsed token
	force bool
	yes   bool
}

func newStepDown(env cli.Env) *cobra.Command {
	q := &request{order: operator.Order{Verb: store.StepDown}}
	cmd := q.command(env, storecli.Spec{
		Use:   "step-down GROUP",
		Short: "Ask the leader of a group to give it up.",
		Long: `Ask the leader of a group to give it up. The leader receives the request with its next
keep-alive, stops its work and answers; then the next candidate leads. The request is for
the current term only: it never affects a later leader.

--force does not ask. It closes the leader's session, and so ends every term that the
leader holds. The leader can believe that it leads until its TTL has passed: only fencing
protects the resources that it writes to.

Exit codes: 3 the group has no leader, or the leader refused; 4 the current term is not
--token; 6 the leader has not answered yet.`,
		Example: `  tenure step-down billing --cool-down=10m --reason=maintenance
  tenure step-down billing --token=43 --yes      # only if it is still that term`,
		Args: storecli.Groups(cobra.ExactArgs(1)),
	})
	cmd.Flags().DurationVar(&q.order.CoolDown, "cool-down", 0, "how long the node must not lead the group again")
	cmd.Flags().BoolVar(&q.force, "force", false, "close the leader's session instead of asking")
	return cmd
}

func newTransfer(env cli.Env) *cobra.Command {
	q := &request{order: operator.Order{Verb: store.Transfer}}
	return q.command(env, storecli.Spec{
		Use:   "transfer GROUP NODE",
		Short: "Ask the leader of a group to hand it over to another candidate.",
		Long: `Ask the leader of a group to hand it over to a candidate of the group. The leader stops
its work, then the candidate leads. No other node leads in between.

Exit codes: 3 the group has no leader, NODE is not a candidate, the leader refused, or
another node leads now; 4 the current term is not --token; 6 the leader has not answered
yet.`,
		Example: `  tenure transfer billing node-2`,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := cobra.ExactArgs(2)(cmd, args); err != nil {
				return err
			}
			q.order.To = args[1]
			return errors.Join(storecli.Groups(cobra.ExactArgs(1))(cmd, args[:1]), storecli.CheckNode(args[1]))
		},
		Complete: []storecli.Completion{storecli.CompleteGroup, storecli.CompleteCandidate},
	})
}

func (q *request) command(env cli.Env, s storecli.Spec) *cobra.Command {
	s.Check, s.Run = q.check, q.run
	cmd := storecli.New(env, s)
	f := cmd.Flags()
	f.StringVar(&q.token, "token", "", "only act on this term (default: the current one)")
	f.StringVar(&q.order.Reason, "reason", "", "reason for the leader's log")
	f.DurationVar(&q.order.Wait, "wait", 15*time.Second, "how long to wait for the leader's answer")
	f.BoolVar(&q.yes, "yes", false, "do not ask for confirmation")
	return cmd
}

func (q *request) check([]string) (err error) {
	switch {
	case len(q.order.Reason) > operator.MaxReason:
		return fmt.Errorf("reason: must be at most %d bytes", operator.MaxReason)
	case q.order.CoolDown < 0 || q.order.CoolDown > operator.MaxCoolDown:
		return fmt.Errorf("cool-down: must be from 0 to %v", operator.MaxCoolDown)
	case q.order.Wait < 0 || q.order.Wait > maxWait:
		return fmt.Errorf("wait: must be from 0 to %v", maxWait)
	case q.token != "":
		q.want, err = fence.ParseToken(q.token)
	}
	return err
}

func (q *request) run(ctx context.Context, r *storecli.Run, args []string) error {
	v, err := r.ReadGroup(ctx, args[0])
	switch {
	case err != nil:
		return err
	case q.want != 0 && q.want != v.Token:
		return cli.Exit(cli.ExitFenced, fmt.Errorf("token %d is not the newest: %s", q.want, whoLeads(v)))
	case v.State != tenure.Led:
		return storecli.NoLeader(v)
	}
	if q.order.Verb == store.Transfer {
		if err := q.checkSuccessor(ctx, r, v); err != nil {
			return err
		}
	}
	if q.force {
		return q.close(ctx, r, v)
	}
	what := "give up"
	if q.order.Verb == store.Transfer {
		what = "hand over to " + q.order.To
	}
	if q.order.CoolDown > 0 {
		what += fmt.Sprintf(", and not to lead it again for %v", q.order.CoolDown)
	}
	if err := r.Confirm(q.yes, "%s; it will be asked to %s", whoLeads(v), what); err != nil {
		return err
	}
	return q.ask(ctx, r, v)
}

func whoLeads(v store.View) string {
	if v.State != tenure.Led {
		return fmt.Sprintf("group %q has no leader (newest token %d)", v.Group, v.Token)
	}
	since := ""
	if n := len(v.Terms); n > 0 {
		since = ", for " + storecli.Age(v.Terms[n-1].Begin)
	}
	return fmt.Sprintf("group %q is led by %s (token %d%s)", v.Group, v.Candidate.ID, v.Token, since)
}

// checkSuccessor refuses a transfer that cannot succeed before the leader is asked.
func (q *request) checkSuccessor(ctx context.Context, r *storecli.Run, v store.View) error {
	if q.order.To == v.Candidate.ID {
		return cli.Exit(cli.ExitNo, fmt.Errorf("node %q already leads group %q", q.order.To, v.Group))
	}
	err := r.Bar(ctx, v.Group, q.order.To)
	var barred *store.BarError
	if errors.As(err, &barred) {
		return cli.Exit(cli.ExitNo, err)
	}
	if err != nil {
		return err
	}
	to, err := r.Newest(ctx, v.Group, q.order.To)
	if err == nil && to.ID == "" {
		err = cli.Exit(cli.ExitNo, fmt.Errorf("node %q is not a candidate of group %q; see `tenure candidates %s`", q.order.To, v.Group, v.Group))
	}
	return err
}

func (q *request) ask(ctx context.Context, r *storecli.Run, v store.View) error {
	cooled := ""
	if q.order.CoolDown > 0 {
		var err error
		cooled, err = r.Cool(ctx, v.Group, v.Candidate.ID, q.order.CoolDown)
		switch {
		case storecli.Denied(err):
			r.Say("you may not set a cool-down on the group: the leader is asked to keep it by itself")
		case err != nil:
			return err
		}
	}
	asked, err := r.Ask(ctx, v, q.order)
	if cooled != "" && (err != nil && store.Definite(err) || asked.Outcome == store.Refused) {
		err = errors.Join(err, r.Warm(ctx, v.Group, v.Candidate.ID, cooled))
	}
	if err != nil {
		return err
	}
	out := service.SteppedDown{Group: v.Group, Term: v.Token, Outcome: string(asked.Outcome), Detail: asked.Detail}
	if now, err := r.ReadGroup(ctx, v.Group); err == nil && now.State == tenure.Led {
		out.LeaderNodeID = now.Candidate.ID
	}
	if err := outcomeTable.One(r.Out, out); err != nil {
		return err
	}
	switch asked.Outcome {
	case store.Done:
		return nil
	case operator.Waiting:
		return cli.Exit(cli.ExitUnavailable, errors.New(asked.Detail))
	case operator.Ended:
		return cli.Exit(cli.ExitNo, errors.New(asked.Detail))
	}
	return cli.Exit(cli.ExitNo, fmt.Errorf("%s refused: %s", v.Candidate.ID, asked.Detail))
}

// close closes the leader's session. There is no other way to take a group by force, and
// it ends every term that the leader holds.
func (q *request) close(ctx context.Context, r *storecli.Run, v store.View) error {
	held, err := r.Held(ctx, store.Scope{"*"}, v.Holder)
	if err != nil && !storecli.Denied(err) { // the caller may not see the other groups
		return err
	}
	out := service.SteppedDown{
		Group: v.Group, Term: v.Token, Outcome: "forced", Detail: "its session was closed; it can believe that it leads until its TTL has passed",
	}
	for _, g := range held {
		if g != v.Group {
			out.AlsoEnded = append(out.AlsoEnded, g)
		}
	}
	if len(out.AlsoEnded) > 0 {
		r.Say("this also ends its terms of %s", strings.Join(out.AlsoEnded, ", "))
	}
	if err := r.Confirm(q.yes, "%s; its session will be closed, and it can continue to act until its TTL has passed: only fencing protects the resources that it writes to", whoLeads(v)); err != nil {
		return err
	}
	if q.order.CoolDown > 0 {
		if _, err := r.Cool(ctx, v.Group, v.Candidate.ID, q.order.CoolDown); err != nil {
			return err
		}
	}
	call, cancel := context.WithTimeout(ctx, r.Call)
	defer cancel()
	if err := r.End(call, v.Holder, store.Forced); err != nil {
		return err
	}
	return outcomeTable.One(r.Out, out)
}

var outcomeTable = cli.Table[service.SteppedDown]{
	Columns: []string{"GROUP", "TERM", "OUTCOME", "LEADER NOW", "DETAIL"},
	Row: func(o service.SteppedDown) []string {
		return []string{o.Group, o.Term.String(), o.Outcome, storecli.Dash(o.LeaderNodeID), o.Detail}
	},
	Name: func(o service.SteppedDown) string { return o.Group },
}
