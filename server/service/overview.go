package service

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/feed"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/store"
)

// Overview is an event of the stream of all groups: "groups" has changes, "state" says whether
// this instance sees the engine.
type Overview struct {
	// Whole: these groups replace everything that was sent before. More: the next event has
	// further ones of the same set.
	Whole  bool            `json:"whole,omitempty"`
	More   bool            `json:"more,omitempty"`
	Groups []OverviewGroup `json:"groups,omitempty"`
	// Engine is ok or unreachable. While it is unreachable no leader is known.
	Engine string `json:"engine,omitempty"`
	NowMS  int64  `json:"now_ms,omitempty"`
}

// OverviewGroup is a group in the stream of all groups.
type OverviewGroup struct {
	Group  string      `json:"group"`
	State  string      `json:"state"` // led, vacant, or gone: it has no record any more
	Term   fence.Token `json:"term,omitempty"`
	Holder string      `json:"leader_node_id,omitempty"` // leads, or led last
	// SinceMS is when the term began; if the group is vacant, when it ended.
	SinceMS int64  `json:"since_ms,omitempty"`
	Reason  string `json:"reason,omitempty"` // why the newest ended term ended
}

const (
	// overviewBeat is how often the stream says that it lives: a reader must notice soon that it
	// does not.
	overviewBeat = 2 * time.Second
	// overviewChunk is how many groups one event has.
	overviewChunk = 500
)

// overview streams all groups that the caller may observe. Only the newest state of each is
// sent. The ids work on this instance only; another one begins with all groups.
func (s *Service) overview(w http.ResponseWriter, r *http.Request) (any, error) {
	ctx, id := r.Context(), auth.From(r.Context())
	if waits(r) {
		wait, err := s.waitOf(w, r)
		if err != nil {
			return nil, err
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
	}
	rights := func() string {
		sum := fnv.New64a()
		_ = json.NewEncoder(sum).Encode(s.gate.Grants(id))
		return strconv.FormatUint(sum.Sum64(), 36)
	}
	sees := rights()
	prefix := s.instance + "." + sees + "."
	var after uint64
	if text, ok := strings.CutPrefix(r.Header.Get("Last-Event-ID"), prefix); ok {
		after, _ = strconv.ParseUint(text, 10, 64)
	}
	out := s.events(w, r)
	tail := s.feed.Tail(after)
	defer tail.Close()
	s.metrics.Streams.Inc()
	defer s.metrics.Streams.Dec()
	defer context.AfterFunc(ctx, tail.Nudge)()
	defer context.AfterFunc(s.ctx, tail.Nudge)()
	beat := time.NewTicker(overviewBeat)
	defer beat.Stop()
	engine, looked := "", time.Now()
	send := func(event, id string, o Overview) error {
		data, err := json.Marshal(o)
		if err != nil {
			return err
		}
		if id != "" {
			id = "id: " + id + "\n"
		}
		return out.send(fmt.Appendf(nil, "event: %s\n%sdata: %s\n\n", event, id, data))
	}
	for {
		due := false
		select {
		case <-tail.Wake():
		case <-beat.C:
			due = true
		}
		if ctx.Err() != nil || s.ctx.Err() != nil {
			return nil, nil
		}
		if time.Since(looked) >= recheck {
			looked = time.Now()
			if s.gate.Recheck(id, auth.Observe, auth.SomeGroup) != nil || rights() != sees {
				return nil, nil // the next request gets the reason, or begins again
			}
		}
		views, revision, whole, synced := tail.Take()
		views = slices.DeleteFunc(views, func(v store.View) bool { return !s.gate.May(id, auth.Observe, v.Group) })
		for first := whole; first || len(views) > 0; first = false {
			n := min(len(views), overviewChunk)
			o := Overview{Whole: first, More: n < len(views), Groups: make([]OverviewGroup, n)}
			for i, v := range views[:n] {
				o.Groups[i] = overviewOf(v)
			}
			views = views[n:]
			at := ""
			if !o.More {
				at = prefix + strconv.FormatUint(revision, 10)
			}
			if send("groups", at, o) != nil {
				return nil, nil //nolint:nilerr // the caller is gone
			}
		}
		// The state comes last: a reader that gets "ok" has everything.
		state := map[bool]string{true: "ok", false: "unreachable"}[synced]
		if due || state != engine {
			engine = state
			if send("state", "", Overview{Engine: engine, NowMS: time.Now().UnixMilli()}) != nil {
				return nil, nil //nolint:nilerr // the caller is gone
			}
		}
	}
}

func overviewOf(v store.View) OverviewGroup {
	g := OverviewGroup{Group: v.Group, State: tenure.Vacant.String(), Term: v.Token, Holder: v.Candidate.ID}
	if v.Version == 0 {
		return OverviewGroup{Group: v.Group, State: "gone"}
	}
	for _, t := range slices.Backward(v.Terms) {
		if v.State == tenure.Led && t.Token == v.Token {
			g.State, g.SinceMS = tenure.Led.String(), t.Begin.UnixMilli()
			continue
		}
		g.Reason = string(t.Reason)
		if g.SinceMS == 0 && !t.End.IsZero() {
			g.SinceMS = t.End.UnixMilli()
		}
		break
	}
	return g
}

// Lease is what an instance remembers about the lease of a group. It is never a permission.
type Lease struct {
	Group       string      `json:"group"`
	Term        fence.Token `json:"term" doc:"the term that these numbers belong to; 0: never led"`
	RemainingMS *int64      `json:"lease_remaining_ms,omitempty" doc:"how long the lease lasts at most without another renewal; absent if nobody leads or this instance does not know"`
	TTLMS       int64       `json:"ttl_ms,omitempty"`
	Candidates  int         `json:"candidates" doc:"living sessions that may lead the group, the leader's included"`
}

// Leases is the answer to a question about several groups.
type Leases struct {
	Leases []Lease `json:"leases"`
}

func (s *Service) leases(_ http.ResponseWriter, r *http.Request) (any, error) {
	groups := watchGroups(r)
	if len(groups) == 0 || len(groups) > feed.MaxGroups {
		return nil, bad("bad_argument", "group: name from 1 to %d groups, each as ?group=", feed.MaxGroups)
	}
	out, now := Leases{Leases: make([]Lease, 0, len(groups))}, s.clock.Now()
	for _, g := range groups {
		if err := store.CheckGroup(g); err != nil {
			return nil, err
		}
		if !s.gate.May(auth.From(r.Context()), auth.Observe, g) {
			continue
		}
		v, synced := s.feed.View(g)
		l := Lease{Group: g, Term: v.Token, Candidates: s.sessions.Candidates(g)}
		if holder, known := s.sessions.Known(v.Holder); known && synced && v.State == tenure.Led {
			left, _ := s.sessions.Remaining(v.Holder, now)
			ms := left.Milliseconds()
			l.RemainingMS, l.TTLMS = &ms, holder.TTL.Milliseconds()
		}
		out.Leases = append(out.Leases, l)
	}
	return out, nil
}

// Whoami is who the caller is.
type Whoami struct {
	NodeID     string       `json:"node_id" doc:"the name in the credential; empty: the service needs no credentials"`
	How        string       `json:"how" enum:"cert,jwt,credential,loopback,insecure"`
	UntilMS    int64        `json:"until_ms,omitempty" doc:"when the credential expires"`
	Grants     []auth.Grant `json:"grants"`
	Deployment string       `json:"deployment"`
	Ledger     bool         `json:"ledger,omitempty" doc:"GET /rejections is served"`
}

func (s *Service) whoami(_ http.ResponseWriter, r *http.Request) (any, error) {
	id := auth.From(r.Context())
	out := Whoami{NodeID: id.Name, How: string(id.How), Grants: s.gate.Grants(id), Deployment: s.deployment, Ledger: s.cfg.Ledger != ""}
	if !id.Until.IsZero() {
		out.UntilMS = id.Until.UnixMilli()
	}
	return out, nil
}

// Rejection is a write that the ledger refused.
type Rejection struct {
	ID          uint64      `json:"id"`
	Resource    string      `json:"resource"`
	Group       string      `json:"group"`
	Term        fence.Token `json:"term" doc:"of the writer"`
	CurrentTerm fence.Token `json:"current_term" doc:"the highest that the resource has seen"`
	NodeID      string      `json:"node_id" doc:"the name that the writer gave, or its address"`
	Reason      string      `json:"reason"`
	Applied     bool        `json:"applied,omitempty" doc:"fencing was off: the write was made anyway"`
	AtMS        int64       `json:"at_ms"`
}

// ledgerRejections is what a ledger answers.
type ledgerRejections struct {
	Items []struct {
		Rejection
		Token        fence.Token `json:"token"`
		CurrentToken fence.Token `json:"current_token"`
		Holder       string      `json:"holder"`
	} `json:"items"`
	Next  string `json:"next"`
	Total uint64 `json:"total"`
}

// Rejections is a page of refused writes, newest first.
type Rejections struct {
	Items []Rejection `json:"items"`
	Next  string      `json:"next,omitempty" doc:"ask again with ?after="`
	Total uint64      `json:"total" doc:"all that were ever refused"`
}

// maxLedgerAnswer bounds what is read from the ledger.
const maxLedgerAnswer = 4 << 20

// rejections asks the ledger for its refused writes, and shows those of groups that the caller
// may observe.
func (s *Service) rejections(_ http.ResponseWriter, r *http.Request) (any, error) {
	if s.cfg.Ledger == "" {
		return nil, httpapi.Refuse(http.StatusNotFound, "no_ledger", "this service does not know a ledger: its operator can name one with --ledger")
	}
	page, err := pageOf(r)
	if err != nil {
		return nil, err
	}
	q := url.Values{"limit": {strconv.Itoa(page.Limit)}}
	if page.After != "" {
		q.Set("after", page.After)
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.cfg.CallTimeout)
	defer cancel()
	var all ledgerRejections
	if err := getJSON(ctx, strings.TrimSuffix(s.cfg.Ledger, "/")+"/v1/rejections?"+q.Encode(), &all); err != nil {
		s.cfg.Log.Warn("cannot read the refused writes", "ledger", s.cfg.Ledger, "err", err)
		return nil, httpapi.Refuse(http.StatusServiceUnavailable, "ledger_unreachable", "the ledger did not answer as a ledger does; see the log of the service").Retry(time.Second)
	}
	out := Rejections{Items: []Rejection{}, Next: all.Next, Total: all.Total}
	for _, j := range all.Items {
		if s.gate.May(auth.From(r.Context()), auth.Observe, j.Group) {
			j.Term, j.CurrentTerm, j.NodeID = j.Token, j.CurrentToken, j.Holder
			out.Items = append(out.Items, j.Rejection)
		}
	}
	return out, nil
}

func getJSON(ctx context.Context, from string, out any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the answer is %s", resp.Status)
	}
	return json.NewDecoder(io.LimitReader(resp.Body, maxLedgerAnswer)).Decode(out)
}

// newInstance names an instance in the ids of its streams.
func newInstance() string { return rand.Text()[:10] }
