package service

import (
	"encoding/json"
	"net/http"

	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/openapi"
)

// table lists the routes of the service, without those of store/remote.
func (s *Service) table() []Route {
	type ps = []openapi.Parameter
	type out = openapi.Answers
	var (
		wait   = openapi.Parameter{Name: "wait", Doc: "how long to wait, such as 30s"}
		after  = openapi.Parameter{Name: "after", Doc: "continue after this entry"}
		cursor = openapi.Parameter{Name: "after", Doc: "the cursor of the last answer"}
		limit  = openapi.Parameter{Name: "limit", Doc: "how many at most, up to 1000; default 100"}
		force  = openapi.Parameter{Name: "force", Doc: "true: close the whole session of the leader instead of asking it. The caller needs the right to all groups of that session. The leader may believe that it leads until its TTL has passed"}
		match  = ps{{Name: "If-Match", Doc: "the version or term that is meant, in quotes"}}
		lastID = ps{{Name: "Last-Event-ID", Doc: "the id of the last event that was seen"}}
	)
	row := func(method, path string, verb auth.Verb, groups func(*http.Request) []string, h handler, doc openapi.Operation) Route {
		return Route{Method: method, Path: path, Rule: auth.Rule{Verb: verb, Groups: groups}, Handle: s.answer(h), Doc: doc}
	}
	renewal := func(r Route) Route { r.Renewal = true; return r }
	campaign := func(r Route) Route { r.Campaign = true; return r }
	held := func(r Route, waits func(*http.Request) bool) Route { r.Waits = waits; return r }
	metrics := row("GET", "/metrics", auth.Observe, nil, nil, openapi.Operation{Summary: "Metrics for Prometheus.", Out: out{200: openapi.Text}})
	metrics.Handle = s.metrics.Handler().ServeHTTP
	whoami := row("GET", "/whoami", auth.Observe, auth.AnyGroup, s.whoami, openapi.Operation{
		Summary: "Who the caller is, and what it may do.", Out: out{200: Whoami{}}})
	whoami.Or = []auth.Verb{auth.Campaign, auth.StepDown, auth.Admin}
	return []Route{
		held(campaign(row("POST", "/groups/{group}/campaign", auth.Campaign, thisGroup, reads(s, false, s.campaign), openapi.Operation{
			Summary: "Lead a group, or learn who leads it.", Query: ps{wait}, In: CampaignRequest{}, Out: out{200: Leading{}, 404: nil, 409: nil}})), waits),
		renewal(row("POST", "/groups/{group}/renew", auth.Campaign, thisGroup, reads(s, false, s.renew), openapi.Operation{
			Summary: "Extend a lease. 409 not_leader: stop acting now.", In: RenewRequest{}, Out: out{200: Renewed{}, 409: nil}})),
		renewal(row("POST", "/groups/{group}/resign", auth.Campaign, thisGroup, reads(s, false, s.resign), openapi.Operation{
			Summary: "Resign from a group, or hand it to a successor.", In: ResignRequest{}, Out: out{200: Resigned{}, 409: nil}})),
		row("GET", "/groups/{group}/leader", auth.Observe, thisGroup, s.leader, openapi.Operation{
			Summary: "Who leads a group, linearizably; with stale, as it was a moment ago.",
			Query:   ps{{Name: "stale", Doc: "how old the answer may be, such as 500ms; at most a quarter of the TTL is used"}},
			Headers: ps{{Name: "If-None-Match", Doc: "the ETag of the last answer: 304 if the same term lasts"}},
			Out:     out{200: Leader{}, 304: openapi.Empty, 404: nil}}),
		held(row("GET", "/groups/{group}/watch", auth.Observe, thisGroup, s.watch, openapi.Operation{
			Summary: "Changes of a group: Server-Sent Events, or a long poll with after or wait.",
			Query:   ps{wait, cursor}, Headers: lastID, Out: out{200: Poll{}, 410: nil}, Stream: true}), auth.Always),
		held(row("GET", "/watch", auth.Observe, watchGroups, s.watch, openapi.Operation{
			Summary: "Changes of several groups in one stream or long poll.",
			Query:   ps{{Name: "group", Doc: "a group; up to 64 times", Many: true}, wait, cursor}, Headers: lastID, Out: out{200: Poll{}, 410: nil}, Stream: true}), auth.Always),
		campaign(row("POST", "/sessions", auth.Campaign, auth.AnyGroup, reads(s, false, s.openSession), openapi.Operation{
			Summary: "Open a session: one keep-alive for many groups.", In: SessionRequest{}, Out: out{201: Session{}, 409: nil}})),
		renewal(row("POST", "/sessions/{handle}/keepalive", auth.Campaign, auth.AnyGroup, s.keepSession, openapi.Operation{
			Summary: "Keep a session and everything it leads alive.", Out: out{200: Beat{}, 409: nil}})),
		held(campaign(row("POST", "/sessions/{handle}/campaign", auth.Campaign, auth.AnyGroup, reads(s, false, s.batch), openapi.Operation{
			Summary: "Lead many groups within a session; with wait, until at least one of them can be led.",
			Query:   ps{wait}, In: BatchRequest{}, Out: out{200: Batch{}, 409: nil}})), waits),
		renewal(row("DELETE", "/sessions/{handle}", auth.Campaign, auth.AnyGroup, s.closeSession, openapi.Operation{
			Summary: "Close a session. Everything it leads becomes vacant.", Out: out{200: Closed{}, 409: nil}})),
		row("GET", "/groups", auth.Observe, auth.AnyGroup, s.groups, openapi.Operation{
			Summary: "Groups that were created or led, and that the caller may observe.",
			Query:   ps{{Name: "prefix", Doc: "only names with this prefix"}, after, limit}, Out: out{200: Groups{}}}),
		row("GET", "/groups/{group}", auth.Observe, thisGroup, s.getGroup, openapi.Operation{
			Summary: "A group and its policy.", Out: out{200: Group{}, 404: nil}}),
		row("PUT", "/groups/{group}", auth.Admin, thisGroup, reads(s, true, s.putGroup), openapi.Operation{
			Summary: "Create a group or change its policy.", Headers: match, In: GroupPolicy{}, InOptional: true,
			Out: out{200: Group{}, 201: Group{}, 409: nil, 412: nil}}),
		row("DELETE", "/groups/{group}", auth.Admin, thisGroup, s.deleteGroup, openapi.Operation{
			Summary: "Delete a group that nobody leads. Its token is kept.", Headers: match, Out: out{200: Group{}, 404: nil, 409: nil, 412: nil}}),
		row("GET", "/groups/{group}/history", auth.Observe, thisGroup, s.history, openapi.Operation{
			Summary: "Terms: who led, how long, and why each ended; newest first.", Query: ps{after, limit}, Out: out{200: History{}}}),
		row("GET", "/groups/{group}/candidates", auth.Observe, thisGroup, s.candidates, openapi.Operation{
			Summary: "The candidates of a group, in order.", Query: ps{after, limit}, Out: out{200: Candidates{}, 409: nil}}),
		held(row("POST", "/groups/{group}/step-down", auth.StepDown, thisGroup, reads(s, true, s.stepDown), openapi.Operation{
			Summary: "Ask the leader to step down.", Query: ps{force, wait}, Headers: match, In: StepDownRequest{}, InOptional: true,
			Out: out{200: SteppedDown{}, 202: SteppedDown{}, 409: nil, 412: nil, 428: nil}}), auth.Always),
		held(row("POST", "/groups/{group}/transfer", auth.StepDown, thisGroup, reads(s, true, s.transfer), openapi.Operation{
			Summary: "Ask the leader to hand over to a candidate.", Query: ps{{Name: "to", Doc: "the node that is to lead"}, force, wait}, Headers: match,
			In: StepDownRequest{}, InOptional: true, Out: out{200: SteppedDown{}, 202: SteppedDown{}, 409: nil, 412: nil}}), auth.Always),
		row("GET", "/nodes/{node}", auth.Observe, nil, s.getNode, openapi.Operation{Summary: "The rules for a node.", Out: out{200: Node{}}}),
		row("PUT", "/nodes/{node}/cordon", auth.Admin, nil, reads(s, true, s.cordon), openapi.Operation{
			Summary: "Keep a node from beginning to lead anything.", In: CordonRequest{}, InOptional: true, Out: out{200: Node{}, 409: nil}}),
		row("DELETE", "/nodes/{node}/cordon", auth.Admin, nil, s.uncordon, openapi.Operation{Summary: "Remove a cordon.", Out: out{200: Node{}, 409: nil}}),
		row("GET", "/shards/{set}", auth.Observe, setGroups, s.shards, openapi.Operation{
			Summary: "Who owns the shards of a set, which should move, and the imbalance.", Out: out{200: Shards{}}}),
		held(Route{Method: "GET", Path: "/overview", Rule: auth.Rule{Verb: auth.Observe, Groups: auth.AnyGroup}, Handle: s.answer(s.overview), Doc: openapi.Operation{
			Summary: "All groups that the caller may observe, and their changes, in one stream; with wait, for so long.", Query: ps{wait}, Headers: lastID, Out: out{200: Overview{}}, Stream: true}}, auth.Always),
		row("GET", "/leases", auth.Observe, auth.AnyGroup, s.leases, openapi.Operation{
			Summary: "What this instance remembers about the leases of several groups, without asking the engine.",
			Query:   ps{{Name: "group", Doc: "a group; up to 64 times", Many: true}}, Out: out{200: Leases{}}}),
		whoami,
		row("GET", "/rejections", auth.Observe, auth.AnyGroup, s.rejections, openapi.Operation{
			Summary: "Writes that the ledger of --ledger refused, newest first.", Query: ps{after, limit}, Out: out{200: Rejections{}, 404: nil}}),
		metrics,
		row("GET", "/healthz", auth.Open, nil, s.health, openapi.Operation{
			Summary: "Whether this instance reaches its engine.", Out: out{200: Health{}, 503: Health{}}}),
		row("GET", "/openapi.json", auth.Open, nil, s.serveDocument, openapi.Operation{Summary: "This description.", Out: out{200: openapi.Object}}),
	}
}

// describe encodes the OpenAPI document of the table.
func (s *Service) describe() ([]byte, error) {
	doc := openapi.New("Tenure", "1",
		"Leader election with fencing. Every path is served with and without /v1. Names are 1 to 63 of a-z 0-9 . _ -, beginning with a letter or digit. "+
			"Tokens (term) stay below 2^53. Every refusal is a problem (RFC 9457) with a stable code.")
	for _, r := range s.routes {
		op := r.Doc
		op.Extra = map[string]any{"x-tenure-verb": string(r.Verb)}
		if len(r.Or) > 0 {
			op.Extra["x-tenure-or"] = r.Or
		}
		op.Open = r.Verb == auth.Open
		doc.Add(r.Method, "/v1"+r.Path, op)
	}
	return json.MarshalIndent(doc, "", " ")
}

func (s *Service) health(w http.ResponseWriter, _ *http.Request) (any, error) {
	if s.metrics.Healthy() {
		return Health{Status: "ok", Deployment: s.deployment}, nil
	}
	w.Header().Set("Retry-After", "1")
	return withStatus{http.StatusServiceUnavailable, Health{Status: "engine_unreachable", Deployment: s.deployment}}, nil
}

func (s *Service) serveDocument(w http.ResponseWriter, _ *http.Request) (any, error) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "max-age=60")
	_, _ = w.Write(s.document)
	return nil, nil
}
