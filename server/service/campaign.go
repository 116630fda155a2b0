package service

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
	"github.com/tenurehq/tenure/internal/election"
	"github.com/tenurehq/tenure/internal/machine"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/store"
)

// contest is the campaign of one candidate for one group.
type contest struct {
	id        auth.Identity
	group     string
	candidate tenure.Candidate
	instance  string        // the process that campaigns
	chosen    bool          // the client chose the instance, so it can retry
	asked     time.Duration // the TTL; 0: the default
	within    handle        // the session to lead in; zero: one for this node and group
	arrived   clock.Instant
	wait      time.Duration

	policy  policy
	session store.Session
	sent    clock.Instant // when the last acknowledged keep-alive of the session was sent
}

func (s *Service) campaign(w http.ResponseWriter, r *http.Request, in CampaignRequest) (any, error) {
	c := &contest{id: auth.From(r.Context()), group: groupOf(r), arrived: s.clock.Now()}
	c.candidate = tenure.Candidate{ID: in.NodeID, Address: in.Address, Metadata: in.Metadata, Priority: in.Priority}
	c.instance, c.chosen = instanceOf(in.Instance)
	err := cmp.Or(auth.Is(r.Context(), in.NodeID), errors.Join(store.CheckGroup(c.group), store.CheckCandidate(c.candidate), c.opening().Validate()))
	if err == nil {
		c.asked, err = s.askedTTL(in.TTLMS)
	}
	if err == nil && in.Session != "" {
		c.within, err = s.parseHandle(in.Session)
	}
	if err == nil {
		c.wait, err = s.waitOf(w, r)
	}
	if err != nil {
		return nil, err
	}
	v, err := s.contend(r.Context(), c)
	s.audit(r.Context(), "campaign", c.group, v.Token, err, "")
	if err != nil {
		return nil, withLeader(err, v)
	}
	h := c.within.String()
	if c.within.session == "" {
		h = s.handleOf(c.session.ID, c.group)
	}
	return Leading{
		Group: c.group, LeaderNodeID: v.Candidate.ID, Term: v.Token, TTLMS: c.session.TTL.Milliseconds(),
		HeldMS: s.held(c.arrived, c.sent), Expiry: s.expiry(c.sent, c.session.TTL), Handle: h,
		Metadata: orEmpty(v.Candidate.Metadata), Deployment: s.deployment, Fenced: c.policy.Fenced,
	}, nil
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

// ttl returns the TTL of a new session. A TTL that the client asked for is granted or refused;
// the default is fitted into the bounds.
func (s *Service) ttl(c *contest) (time.Duration, error) {
	least, most := max(c.policy.MinTTL, 1), s.cfg.MaxTTL
	if c.policy.MaxTTL > 0 {
		most = min(most, c.policy.MaxTTL)
	}
	if c.asked > 0 && (c.asked < least || c.asked > most) {
		return 0, ttlProblem(c.asked.Milliseconds(), least, most)
	}
	return min(max(cmp.Or(c.asked, s.cfg.TTL), least), most), nil
}

// waitOf reads ?wait= and makes the connection last that long.
func (s *Service) waitOf(w http.ResponseWriter, r *http.Request) (time.Duration, error) {
	text := r.URL.Query().Get("wait")
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 || d > s.cfg.MaxWait {
		return 0, bad("bad_wait", "wait: want a duration from 0 to %v, such as 30s", s.cfg.MaxWait)
	}
	s.extendDeadlines(w, d)
	return d, nil
}

// extendDeadlines extends the deadlines of the connection beyond a wait. If the server's read
// deadline passed, it would look as if the caller had disconnected.
func (s *Service) extendDeadlines(w http.ResponseWriter, d time.Duration) {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Time{})
	_ = rc.SetWriteDeadline(time.Now().Add(d + 3*s.cfg.CallTimeout + s.cfg.WriteTimeout))
}

// backoff is when a candidate that lost should retry.
func (s *Service) backoff(p policy, v store.View) time.Duration {
	if p.Backoff > 0 {
		return p.Backoff
	}
	ttl := s.cfg.TTL
	if holder, known := s.sessions.Known(v.Holder); known {
		ttl = holder.TTL
	}
	return max(ttl/4, 100*time.Millisecond)
}

// look reads the group and the rules for it concurrently.
func (s *Service) look(ctx context.Context, c *contest) (v store.View, node store.Attributes, err error) {
	var all sync.WaitGroup
	var viewErr error
	all.Go(func() { v, viewErr = s.engine.Read(ctx, c.group) })
	c.policy, node, err = s.policyOf(ctx, c.group, c.candidate.ID)
	all.Wait()
	return v, node, errors.Join(err, viewErr)
}

// contend campaigns and returns the view in which the candidate leads. If it fails, the view
// has the leader, if that is known.
func (s *Service) contend(ctx context.Context, c *contest) (store.View, error) {
	v, node, err := s.look(ctx, c)
	if err != nil {
		return store.View{}, err
	}
	holder, ours, err := s.retried(ctx, c, v)
	switch {
	case errors.Is(err, store.ErrSessionDead):
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
		cfg.Machine, err = s.within(ctx, c, ours)
	} else {
		err = s.sessions.Room(c.candidate.ID, c.opening())
		cfg.Machine = machine.Config{Candidate: c.candidate, Scope: store.Scope{c.group}, Timing: s.timing(ttl), Attempt: c.opening().Attempt}
		who.open = func(ctx context.Context) (store.Session, error) {
			return s.open(ctx, c.candidate, c.asked, ttl, c.opening())
		}
	}
	if err != nil {
		return v, err
	}
	out := s.run(ctx, cfg, who, v)
	c.session, c.sent = out.Session, out.Sent
	v, won, err := outcomeFor(out, c.group)
	if err == nil && !won {
		err = s.notElected(c, v)
	}
	return v, err
}

// outcomeFor returns what a campaign found about one of its groups, and whether it leads it.
func outcomeFor(out election.Outcome, group string) (v store.View, won bool, err error) {
	if led, ok := out.Led[group]; ok {
		return store.View{Record: led, State: tenure.Led}, true, nil
	}
	return out.Views[group], false, cmp.Or(out.Failed[group], out.Err)
}

// deadline is when a campaign ends. One that does not wait has time for two calls.
func (s *Service) deadline(arrived clock.Instant, wait time.Duration) clock.Instant {
	if wait > 0 {
		return arrived.Add(wait)
	}
	return s.clock.Now().Add(2 * s.cfg.CallTimeout)
}

// eligible decides whether to campaign at all, and with which TTL.
func (s *Service) eligible(c *contest, v store.View, node store.Attributes) (time.Duration, error) {
	if p := s.admits(c.policy, node, c.group, store.Session{Candidate: c.candidate}); p != nil {
		return 0, led(p, v, 0)
	}
	ttl, err := s.ttl(c)
	switch {
	case err != nil:
		return 0, err
	case v.State == tenure.Led && c.wait == 0:
		return 0, s.notElected(c, v)
	}
	return ttl, s.checkGroupQuota(c.id, c.candidate.ID, 1)
}

// within campaigns in a session that the client opened.
func (s *Service) within(ctx context.Context, c *contest, ours bool) (machine.Config, error) {
	session, err := s.owned(ctx, c.within.session, c.candidate.ID)
	if err == nil && !session.Scope.Covers(c.group) {
		err = outOfScope(c.group)
	}
	if err != nil {
		return machine.Config{}, err
	}
	if p := s.admits(c.policy, store.Attributes{}, c.group, session); p != nil && !ours {
		return machine.Config{}, p
	}
	return s.clientMachine(ctx, session)
}

// clientMachine renews a session that the client opened, and returns the machine that campaigns in it.
func (s *Service) clientMachine(ctx context.Context, session store.Session) (machine.Config, error) {
	sent := s.clock.Now()
	beat, err := s.engine.KeepAlive(ctx, session.ID)
	if err != nil {
		return machine.Config{}, err
	}
	session.TTL = beat.TTL
	return s.lentMachine(session, sent), nil
}

func (s *Service) lentMachine(session store.Session, sent clock.Instant) machine.Config {
	return machine.Config{
		Candidate: session.Candidate, Scope: session.Scope, Timing: s.timing(session.TTL), Session: &session, Sent: sent, Lent: true,
	}
}

// checkGroupQuota checks the quota of groups that one identity may hold.
func (s *Service) checkGroupQuota(id auth.Identity, node string, more int) error {
	if id.Anonymous() {
		return nil
	}
	return s.gate.Room(auth.GroupsHeld, s.feed.Leads(node), more)
}

// leads reports whether a living session of the node holds the group.
func leads(v store.View, node string) bool { return v.State == tenure.Led && v.Candidate.ID == node }

// instanceOf returns the instance that the client chose. A client that chose none gets a new
// one for each call, so its retry counts as another process.
func instanceOf(given string) (instance string, chosen bool) {
	if given != "" {
		return given, true
	}
	return rand.Text(), false
}

// attempt names a session among those of an instance, so that the call that opens it can be
// retried. A session that a client opens and the session of a campaign, which ends with its
// term, have different attempts.
func attempt(purpose string, scope store.Scope) string {
	sum := sha256.Sum256([]byte(purpose + "\x00" + strings.Join(scope, "\x00")))
	return hex.EncodeToString(sum[:16])
}

// opening returns the options for the session of a campaign.
func (c *contest) opening() store.OpenOptions {
	scope := store.Scope{c.group}
	return store.OpenOptions{Scope: scope, Instance: c.instance, Attempt: attempt("campaign", scope)}
}

// retried reports whether the leader is the session of this very campaign, because the client
// sent the call again. A session of the same node that another process opened is not.
func (s *Service) retried(ctx context.Context, c *contest, v store.View) (holder store.Session, ours bool, err error) {
	if !leads(v, c.candidate.ID) {
		return store.Session{}, false, nil
	}
	if holder, err = s.sessions.Find(ctx, v.Holder); err != nil {
		return holder, false, err
	}
	if c.within.session != "" {
		return holder, v.Holder == c.within.session, nil
	}
	o := c.opening()
	caller := store.Session{Candidate: c.candidate, Instance: store.InstanceDigest(c.instance), Scope: o.Scope}
	return holder, !s.sessions.Met(holder, caller) && slices.Equal(holder.Scope, o.Scope), nil
}

// otherProcess reports whether another process with the node id of the campaign leads.
func (s *Service) otherProcess(c *contest, v store.View) bool {
	if !leads(v, c.candidate.ID) || c.within.session != "" || v.Holder == c.session.ID {
		return false
	}
	holder, known := s.sessions.Known(v.Holder)
	return !known || holder.Instance != store.InstanceDigest(c.instance)
}
