package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/election"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/httpapi"
)

// contest is one candidate's campaign for one group.
type contest struct {
	id        auth.Identity
	group     string
	candidate tenure.Candidate
	instance  string        // the process that campaigns
	chosen    bool          // the client chose the instance, so it can retry
	asked     time.Duration // the TTL; 0: the default
	within    handle        // the session to lead in; zero: one for node and group
	arrived   clock.Instant
	wait      time.Duration

	policy  policy
	session lease.Session
	sent    clock.Instant // when the session's last acknowledged beat was sent
}

func (s *Service) campaign(w http.ResponseWriter, r *http.Request) error {
	c := &contest{id: auth.From(r.Context()), group: groupOf(r), arrived: s.clock.Now()}
	var in CampaignRequest
	if err := s.body(w, r, false, &in); err != nil {
		return err
	}
	if err := c.id.Is(in.NodeID); err != nil {
		return err
	}
	c.candidate = tenure.Candidate{ID: in.NodeID, Address: in.Address, Metadata: in.Metadata, Priority: in.Priority}
	c.instance, c.chosen = instanceOf(in.Instance)
	if err := errors.Join(lease.CheckGroup(c.group), lease.CheckCandidate(c.candidate), c.opening().Validate()); err != nil {
		return err
	}
	var err error
	if c.asked, err = s.askedTTL(in.TTLMS); err != nil {
		return err
	}
	if in.Session != "" {
		if c.within, err = s.parseHandle(in.Session); err != nil {
			return err
		}
	}
	if c.wait, err = s.waitOf(w, r); err != nil {
		return err
	}
	v, err := s.contend(r.Context(), c)
	if err != nil {
		s.audit(r.Context(), "campaign", c.group, v.Token, err, "")
		return knowing(err, v)
	}
	s.audit(r.Context(), "campaign", c.group, v.Token, nil, "")
	httpapi.WriteJSON(w, http.StatusOK, Leading{
		Group: c.group, LeaderNodeID: v.Candidate.ID, Term: v.Token, TTLMS: c.session.TTL.Milliseconds(),
		HeldMS: s.held(c.arrived, c.sent), Expiry: s.expiry(c.sent, c.session.TTL), Handle: s.handleFor(c),
		Metadata: orEmpty(v.Candidate.Metadata), Deployment: s.deployment, Fenced: c.policy.Fenced,
	})
	return nil
}

func (s *Service) handleFor(c *contest) string {
	if c.within.session != "" {
		return c.within.String()
	}
	return s.handleOf(c.session.ID, c.group)
}

func orEmpty(m map[string]string) map[string]string {
	if m == nil {
		return map[string]string{}
	}
	return m
}

// askedTTL checks a ttl_ms.
func (s *Service) askedTTL(ms int64) (time.Duration, error) {
	if ms < 0 || ms > s.cfg.MaxTTL.Milliseconds() {
		return 0, ttlProblem(ms, s.store.Caps().MinTTL, s.cfg.MaxTTL)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

func ttlProblem(ms int64, least, most time.Duration) *httpapi.Problem {
	p := bad("ttl_out_of_bounds", "ttl_ms = %d must be from %d to %d", ms, least.Milliseconds(), most.Milliseconds())
	p.More = map[string]any{"min_ttl_ms": least.Milliseconds(), "max_ttl_ms": most.Milliseconds()}
	return p
}

// bounds are those of a group's TTL.
func (s *Service) bounds(p policy) (least, most time.Duration) {
	least, most = max(p.MinTTL, 1), s.cfg.MaxTTL
	if p.MaxTTL > 0 {
		most = min(most, p.MaxTTL)
	}
	return least, most
}

// ttl decides how long a new session shall last. What was asked for is granted or
// refused; the default is fitted in.
func (s *Service) ttl(c *contest) (time.Duration, error) {
	least, most := s.bounds(c.policy)
	if c.asked > 0 && (c.asked < least || c.asked > most) {
		return 0, ttlProblem(c.asked.Milliseconds(), least, most)
	}
	return min(max(cmp.Or(c.asked, s.cfg.TTL), least), most), nil
}

// waitOf reads ?wait= and sees to it that the connection lasts that long.
func (s *Service) waitOf(w http.ResponseWriter, r *http.Request) (time.Duration, error) {
	text := r.URL.Query().Get("wait")
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > s.cfg.MaxWait {
		return 0, bad("bad_wait", "wait: a duration from 0 to %v, such as 30s", s.cfg.MaxWait)
	}
	s.outlast(w, d)
	return d, nil
}

// outlast moves the deadlines of the connection behind a wait. The server's deadline for
// reading would otherwise pass for the caller's going away.
func (s *Service) outlast(w http.ResponseWriter, d time.Duration) {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Time{})
	_ = rc.SetWriteDeadline(time.Now().Add(d + 3*s.cfg.CallTimeout + s.cfg.WriteTimeout))
}

// backoff is when a candidate that lost should ask again.
func (s *Service) backoff(p policy, v lease.View) time.Duration {
	if p.Backoff > 0 {
		return p.Backoff
	}
	ttl := s.cfg.TTL
	if holder, known := s.sessions.known(v.Holder); known {
		ttl = holder.TTL
	}
	return max(ttl/4, 100*time.Millisecond)
}

// scene is what a campaign must know before it does anything, read at one time.
func (s *Service) scene(ctx context.Context, c *contest) (v lease.View, node lease.Attributes, err error) {
	var all sync.WaitGroup
	var policies []policy
	var viewErr error
	all.Go(func() {
		a, err := s.reader.Read(ctx, c.group)
		v, viewErr = a.View, err
	})
	if policies, node, err = s.policiesOf(ctx, c.candidate.ID, c.group); err == nil {
		c.policy = policies[0]
	}
	all.Wait()
	return v, node, errors.Join(err, viewErr)
}

// contend campaigns, and returns the view in which the candidate leads. Where it fails,
// the view is what is known of who does.
func (s *Service) contend(ctx context.Context, c *contest) (lease.View, error) {
	v, node, err := s.scene(ctx, c)
	if err != nil {
		return lease.View{}, err
	}
	holder, ours, err := s.retried(ctx, c, v)
	switch {
	case errors.Is(err, lease.ErrSessionDead):
		v.State = tenure.Vacant // it died just now
	case err != nil:
		return v, err
	}
	ttl := holder.TTL
	if !ours {
		if ttl, err = s.eligible(c, v, node); err != nil {
			return v, err
		}
	}
	cfg := election.Config{Groups: []string{c.group}, Wait: c.wait > 0, Retriable: c.chosen, Deadline: s.deadline(c.arrived, c.wait)}
	who := campaigner{id: c.id}
	if c.within.session != "" {
		if cfg.Machine, err = s.within(ctx, c, ours); err != nil {
			return v, err
		}
	} else {
		if err := s.sessions.room(c.candidate.ID, c.opening()); err != nil {
			return v, err
		}
		cfg.Machine = lease.MachineConfig{Candidate: c.candidate, Scope: lease.Scope{c.group}, Timing: s.timing(ttl), Attempt: c.opening().Attempt}
		who.open = func(ctx context.Context) (lease.Session, error) {
			return s.open(ctx, c.candidate, c.asked, ttl, c.opening())
		}
	}
	out := s.run(ctx, cfg, who, v)
	c.session, c.sent = out.Session, out.Sent
	if led, ok := out.Led[c.group]; ok {
		return lease.View{Record: led, State: tenure.Led}, nil
	}
	v = out.Views[c.group]
	if err := cmp.Or(out.Failed[c.group], out.Err); err != nil {
		return v, err
	}
	return v, s.notElected(c, v)
}

// deadline is when a campaign is over: those who do not wait have the time of two calls.
func (s *Service) deadline(arrived clock.Instant, wait time.Duration) clock.Instant {
	if wait > 0 {
		return arrived.Add(wait)
	}
	return s.clock.Now().Add(2 * s.cfg.CallTimeout)
}

// eligible decides whether to campaign at all, and with which TTL.
func (s *Service) eligible(c *contest, v lease.View, node lease.Attributes) (time.Duration, error) {
	if p := s.admits(c.policy, node, c.group, lease.Session{Candidate: c.candidate}); p != nil {
		return 0, led(p, v, 0)
	}
	ttl, err := s.ttl(c)
	switch {
	case err != nil:
		return 0, err
	case v.State == tenure.Led && c.wait == 0:
		return 0, s.notElected(c, v)
	}
	return ttl, s.room(c.id, c.candidate.ID, 1)
}

// within campaigns in the session of the client.
func (s *Service) within(ctx context.Context, c *contest, ours bool) (lease.MachineConfig, error) {
	session, err := s.own(ctx, c.within, c.candidate.ID)
	if err != nil {
		return lease.MachineConfig{}, err
	}
	if !session.Scope.Covers(c.group) {
		return lease.MachineConfig{}, outOfScope(c.group)
	}
	if p := s.admits(c.policy, lease.Attributes{}, c.group, session); p != nil && !ours {
		return lease.MachineConfig{}, p
	}
	return s.lent(ctx, session)
}

// lent keeps the session of a client alive, and campaigns in it.
func (s *Service) lent(ctx context.Context, session lease.Session) (lease.MachineConfig, error) {
	sent := s.clock.Now()
	beat, err := s.engine.KeepAlive(ctx, session.ID)
	if err != nil {
		return lease.MachineConfig{}, err
	}
	session.TTL = beat.TTL
	return lease.MachineConfig{
		Candidate: session.Candidate, Scope: session.Scope, Timing: s.timing(session.TTL), Session: &session, Sent: sent, Lent: true,
	}, nil
}

func outOfScope(group string) *httpapi.Problem {
	return &httpapi.Problem{
		Status: http.StatusConflict, Code: "out_of_scope",
		Detail: fmt.Sprintf("the session does not stand for group %q: open one that does", group),
	}
}

// room checks the quota of groups that one identity may hold.
func (s *Service) room(id auth.Identity, node string, more int) error {
	if id.Anonymous() {
		return nil
	}
	return s.gate.Room(auth.GroupsHeld, s.feed.Leads(node), more)
}

// leads reports whether a living session of the node holds the group.
func leads(v lease.View, node string) bool { return v.State == tenure.Led && v.Candidate.ID == node }

// audit writes down what was done and what failed; what was denied is written by answer.
func (s *Service) audit(ctx context.Context, what, group string, token fence.Token, err error, reason string) {
	if err != nil && explain(err).Status == http.StatusForbidden {
		return
	}
	s.record(ctx, what, group, token, err, reason)
}

func (s *Service) record(ctx context.Context, what, group string, token fence.Token, err error, reason string) {
	e := auth.Entry{What: what, Group: group, Token: token, Result: auth.Done, Reason: reason}
	if err != nil {
		p := explain(err)
		e.Result, e.Reason = auth.Failed, p.Code
		if p.Status == http.StatusForbidden {
			e.Result = auth.Denied
		}
	}
	s.gate.Audit(ctx, e)
}

func etag(n uint64) string { return `"` + strconv.FormatUint(n, 10) + `"` }
