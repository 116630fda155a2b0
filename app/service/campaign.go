package service

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/app/httpapi"
	"github.com/tenurehq/tenure/app/service/access"
	"github.com/tenurehq/tenure/app/steer"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
)

// contest is one candidate's campaign for one group.
type contest struct {
	id        access.Identity
	group     string
	candidate tenure.Candidate
	instance  string        // the process that campaigns
	chosen    bool          // the client chose the instance, so it can retry
	wish      time.Duration // for the TTL; 0: none
	earlier   steer.Wish    // of the node, in its last term
	within    handle        // the session to lead in; zero: one for node and group
	arrived   clock.Instant
	wait      time.Duration

	policy  policy
	session lease.Session
	sent    clock.Instant // when the session's last acknowledged beat was sent
}

func (s *Service) campaign(w http.ResponseWriter, r *http.Request) error {
	c := &contest{id: access.From(r.Context()), group: groupOf(r), arrived: s.clock.Now()}
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
	if c.wish, err = s.wishOf(in.TTLMS); err != nil {
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
	if err == nil {
		err = s.deliverable(r.Context(), c)
	}
	if err != nil {
		s.abandon(r.Context(), c)
		s.audit(r.Context(), "campaign", c.group, v.Token, err, "")
		return knowing(err, v)
	}
	s.audit(r.Context(), "campaign", c.group, v.Token, nil, "")
	s.fulfil(r.Context(), c)
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

// wishOf checks a ttl_ms.
func (s *Service) wishOf(ms int64) (time.Duration, error) {
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
// refused; what was wished for in an earlier term, and the default, are fitted in.
func (s *Service) ttl(c *contest) (time.Duration, error) {
	least, most := s.bounds(c.policy)
	if c.wish > 0 && (c.wish < least || c.wish > most) {
		return 0, ttlProblem(c.wish.Milliseconds(), least, most)
	}
	ttl := c.wish
	if c.earlier.TTL > 0 {
		ttl = c.earlier.TTL
	}
	def(&ttl, s.cfg.TTL)
	return min(max(ttl, least), most), nil
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
	return max(s.sessions.ttl(v.Holder)/4, 100*time.Millisecond)
}

// scene is what a campaign must know before it does anything, read at one time.
func (s *Service) scene(ctx context.Context, c *contest) (v lease.View, node lease.Attributes, err error) {
	var all sync.WaitGroup
	var viewErr, nodeErr, wishErr error
	all.Go(func() {
		a, err := s.reader.Read(ctx, c.group)
		v, viewErr = a.View, err
	})
	all.Go(func() { node, nodeErr = s.node(ctx, c.candidate.ID) })
	all.Go(func() { c.earlier, wishErr = s.wish(ctx, c) })
	c.policy, err = s.policies.get(ctx, c.group)
	all.Wait()
	return v, node, errors.Join(err, viewErr, nodeErr, wishErr)
}

// contend campaigns, and returns the view in which the candidate leads. Where it fails,
// the view is what is known of who does.
func (s *Service) contend(ctx context.Context, c *contest) (lease.View, error) {
	v, node, err := s.scene(ctx, c)
	if err != nil {
		return lease.View{}, err
	}
	own, err := s.retried(ctx, c, v)
	switch {
	case errors.Is(err, lease.ErrSessionDead):
		v.State = tenure.Vacant // it died just now
	case own || err != nil:
		return v, err
	}
	s.sessions.seen(v)
	if p := c.policy.admits(c.group, c.candidate.ID, time.Now()); p != nil {
		return v, led(p, v, 0)
	}
	if p := cordoned(node, c.candidate.ID); p != nil {
		return v, led(p, v, 0)
	}
	ttl, err := s.ttl(c)
	if err != nil {
		return v, err
	}
	if v.State == tenure.Led && c.wait == 0 {
		return v, s.notElected(c, v)
	}
	if err := s.room(c.id, c.candidate.ID, 1); err != nil {
		return v, err
	}
	if err := s.seat(ctx, c, ttl); err != nil {
		return v, err
	}
	if v.State != tenure.Led {
		won, err := s.take(ctx, c, v)
		if err == nil || c.wait == 0 || !errors.Is(err, errTaken) {
			if errors.Is(err, errTaken) {
				err = s.notElected(c, won)
			}
			return won, err
		}
	}
	return s.standInLine(ctx, c, ttl)
}

// room checks the quota of groups that one identity may hold.
func (s *Service) room(id access.Identity, node string, more int) error {
	if id.Anonymous() {
		return nil
	}
	return s.gate.Room(access.GroupsHeld, s.feed.Leads(node), more)
}

// leads reports whether a living session of the node holds the group.
func leads(v lease.View, node string) bool { return v.State == tenure.Led && v.Candidate.ID == node }

// leads reports whether the session of the campaign holds the group.
func (c *contest) leads(v lease.View) bool {
	return v.State == tenure.Led && v.Holder == c.session.ID
}

// again extends the lease of a session that leads.
func (s *Service) again(ctx context.Context, c *contest) error {
	beat, sent, err := s.keep(ctx, c.session.ID)
	if err == nil {
		c.session.TTL, c.sent = beat.TTL, sent
	}
	return err
}

// errTaken: another leads, or the record is not as it was seen.
var errTaken = errors.New("service: the group was not vacant, or is not as it was")

// take tries to get a vacant group. With errTaken the view is what stands in the way.
func (s *Service) take(ctx context.Context, c *contest, v lease.View) (lease.View, error) {
	open := errTaken // how it ends if no try decides it
	for range tries {
		cctx, cancel := s.call(ctx)
		asked := s.clock.Now()
		granted, err := s.store.Acquire(cctx, c.session.ID, v.Record)
		cancel()
		s.metrics.engineCall(s.clock.Now().Sub(asked), err)
		var conflict *lease.ConflictError
		switch {
		case err == nil:
			return lease.View{Record: granted[0], State: tenure.Led}, nil
		case errors.As(err, &conflict) && len(conflict.Current) == 1:
			v = conflict.Current[0]
		case lease.Definite(err) && !errors.Is(err, lease.ErrConflict):
			return v, err
		default:
			// Nobody said, or the answer was lost: the record knows.
			a, rerr := s.reader.Read(ctx, c.group)
			if rerr != nil {
				return v, err
			}
			v = a.View
		}
		if open = errTaken; !lease.Definite(err) {
			open = err
		}
		switch {
		case v.State == tenure.Led && v.Holder == c.session.ID:
			return v, nil
		case v.State == tenure.Led:
			return v, errTaken
		}
	}
	return v, open
}

func isConflict(err error) bool { return errors.Is(err, lease.ErrConflict) }

// audit writes down what was done and what failed; what was denied is written by answer.
func (s *Service) audit(ctx context.Context, what, group string, token fence.Token, err error, reason string) {
	if err != nil && explain(err).Status == http.StatusForbidden {
		return
	}
	s.record(ctx, what, group, token, err, reason)
}

func (s *Service) record(ctx context.Context, what, group string, token fence.Token, err error, reason string) {
	e := access.Entry{What: what, Group: group, Token: token, Result: access.Done, Reason: reason}
	if err != nil {
		p := explain(err)
		e.Result, e.Reason = access.Failed, p.Code
		if p.Status == http.StatusForbidden {
			e.Result = access.Denied
		}
	}
	s.gate.Audit(ctx, e)
}

func etag(n uint64) string { return `"` + strconv.FormatUint(n, 10) + `"` }
