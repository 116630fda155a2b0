package service

import (
	"net/http"

	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/server/openapi"
)

// table is what the service serves.
func (s *Service) table() []Route {
	var (
		wait  = openapi.Parameter{Name: "wait", Doc: "how long to wait, such as 30s"}
		after = openapi.Parameter{Name: "after", Doc: "go on behind this entry"}
		limit = openapi.Parameter{Name: "limit", Doc: "how many at most, up to 1000; default 100"}
		force = openapi.Parameter{Name: "force", Doc: "true: close the leader's whole session instead of asking, with the right to all that it leads; it may believe to lead until its TTL has passed"}
		match = openapi.Parameter{Name: "If-Match", Doc: "the version or term that is meant, in quotes"}
	)
	campaigns := func(path, summary string, in any, out openapi.Answers, h func(http.ResponseWriter, *http.Request) error) Route {
		return Route{
			Method: http.MethodPost, Path: path, Verb: auth.Campaign, Groups: thisGroup, Handle: s.answer(h),
			Doc: openapi.Operation{Summary: summary, In: in, Out: out},
		}
	}
	renew := campaigns("/groups/{group}/renew", "Extend a lease. 409 not_leader: stop acting now.", RenewRequest{}, openapi.Answers{200: Renewed{}, 409: nil}, s.renew)
	renew.Renewal = true
	lead := campaigns("/groups/{group}/campaign", "Lead a group, or learn who does.", CampaignRequest{}, openapi.Answers{200: Leading{}, 404: nil, 409: nil}, s.campaign)
	lead.Campaign, lead.Waits, lead.Doc.Query = true, waits, []openapi.Parameter{wait}
	resign := campaigns("/groups/{group}/resign", "Give a group up, or hand it to a successor.", ResignRequest{}, openapi.Answers{200: Resigned{}, 409: nil}, s.resign)
	resign.Renewal = true
	return []Route{
		lead,
		renew,
		resign,
		{
			Method: "GET", Path: "/groups/{group}/leader", Verb: auth.Observe, Groups: thisGroup, Handle: s.answer(s.leader),
			Doc: openapi.Operation{
				Summary: "Who leads a group, linearizably; with stale, as it was a moment ago.",
				Query:   []openapi.Parameter{{Name: "stale", Doc: "how old the answer may be, such as 500ms; a quarter of the TTL at most counts"}},
				Headers: []openapi.Parameter{{Name: "If-None-Match", Doc: "the ETag of the last answer: 304 if the same term lasts"}},
				Out:     openapi.Answers{200: Leader{}, 304: openapi.Empty, 404: nil},
			},
		},
		{
			Method: "GET", Path: "/groups/{group}/watch", Verb: auth.Observe, Groups: thisGroup, Waits: always, Handle: s.answer(s.watch),
			Doc: openapi.Operation{
				Summary: "Changes of a group: Server-Sent Events, or a long poll with after or wait.",
				Query:   []openapi.Parameter{wait, {Name: "after", Doc: "the cursor of the last answer"}},
				Headers: []openapi.Parameter{{Name: "Last-Event-ID", Doc: "the id of the last event that was seen"}},
				Out:     openapi.Answers{200: Poll{}, 410: nil}, Stream: true,
			},
		},
		{
			Method: "GET", Path: "/watch", Verb: auth.Observe, Groups: watchGroups, Waits: always, Handle: s.answer(s.watch),
			Doc: openapi.Operation{
				Summary: "Changes of several groups in one stream or long poll.",
				Query:   []openapi.Parameter{{Name: "group", Doc: "a group; up to 64 times", Many: true}, wait, {Name: "after", Doc: "the cursor of the last answer"}},
				Headers: []openapi.Parameter{{Name: "Last-Event-ID", Doc: "the id of the last event that was seen"}},
				Out:     openapi.Answers{200: Poll{}, 410: nil}, Stream: true,
			},
		},
		{
			Method: "POST", Path: "/sessions", Verb: auth.Campaign, Groups: someGroup, Campaign: true, Handle: s.answer(s.openSession),
			Doc: openapi.Operation{Summary: "Open a session: one keep-alive for many groups.", In: SessionRequest{}, Out: openapi.Answers{201: Session{}, 409: nil}},
		},
		{
			Method: "POST", Path: "/sessions/{handle}/keepalive", Verb: auth.Campaign, Groups: someGroup, Renewal: true, Handle: s.answer(s.keepSession),
			Doc: openapi.Operation{Summary: "Keep a session alive, with everything it leads.", Out: openapi.Answers{200: Beat{}, 409: nil}},
		},
		{
			Method: "POST", Path: "/sessions/{handle}/campaign", Verb: auth.Campaign, Groups: someGroup, Campaign: true, Waits: waits, Handle: s.answer(s.batch),
			Doc: openapi.Operation{Summary: "Lead many groups within a session; with wait, as soon as one of them can be led.",
				Query: []openapi.Parameter{wait}, In: BatchRequest{}, Out: openapi.Answers{200: Batch{}, 409: nil}},
		},
		{
			Method: "DELETE", Path: "/sessions/{handle}", Verb: auth.Campaign, Groups: someGroup, Renewal: true, Handle: s.answer(s.closeSession),
			Doc: openapi.Operation{Summary: "Close a session; everything it leads falls vacant.", Out: openapi.Answers{200: Closed{}, 409: nil}},
		},
		{
			Method: "GET", Path: "/groups", Verb: auth.Observe, Groups: someGroup, Handle: s.answer(s.groups),
			Doc: openapi.Operation{Summary: "Groups that were ever led, as far as the caller may observe them.",
				Query: []openapi.Parameter{{Name: "prefix", Doc: "only names that begin so"}, after, limit}, Out: openapi.Answers{200: Groups{}}},
		},
		{
			Method: "GET", Path: "/groups/{group}", Verb: auth.Observe, Groups: thisGroup, Handle: s.answer(s.getGroup),
			Doc: openapi.Operation{Summary: "A group and its policy.", Out: openapi.Answers{200: Group{}, 404: nil}},
		},
		{
			Method: "PUT", Path: "/groups/{group}", Verb: auth.Admin, Groups: thisGroup, Handle: s.answer(s.putGroup),
			Doc: openapi.Operation{Summary: "Create a group or change its policy.", Headers: []openapi.Parameter{match}, In: GroupPolicy{}, InOptional: true,
				Out: openapi.Answers{200: Group{}, 201: Group{}, 409: nil, 412: nil}},
		},
		{
			Method: "DELETE", Path: "/groups/{group}", Verb: auth.Admin, Groups: thisGroup, Handle: s.answer(s.deleteGroup),
			Doc: openapi.Operation{Summary: "Delete a group that nobody leads. Its token is kept.", Headers: []openapi.Parameter{match},
				Out: openapi.Answers{200: Group{}, 404: nil, 409: nil, 412: nil}},
		},
		{
			Method: "GET", Path: "/groups/{group}/history", Verb: auth.Observe, Groups: thisGroup, Handle: s.answer(s.history),
			Doc: openapi.Operation{Summary: "Terms: who led, how long, and why each ended; newest first.", Query: []openapi.Parameter{after, limit}, Out: openapi.Answers{200: History{}}},
		},
		{
			Method: "GET", Path: "/groups/{group}/candidates", Verb: auth.Observe, Groups: thisGroup, Handle: s.answer(s.candidates),
			Doc: openapi.Operation{Summary: "Who stands in line, in order.", Query: []openapi.Parameter{after, limit}, Out: openapi.Answers{200: Candidates{}, 409: nil}},
		},
		{
			Method: "POST", Path: "/groups/{group}/step-down", Verb: auth.StepDown, Groups: thisGroup, Waits: always, Handle: s.answer(s.stepDown),
			Doc: openapi.Operation{Summary: "Ask the leader to give up.", Query: []openapi.Parameter{force, wait}, Headers: []openapi.Parameter{match}, In: StepDownRequest{}, InOptional: true,
				Out: openapi.Answers{200: SteppedDown{}, 202: SteppedDown{}, 409: nil, 412: nil, 428: nil}},
		},
		{
			Method: "POST", Path: "/groups/{group}/transfer", Verb: auth.StepDown, Groups: thisGroup, Waits: always, Handle: s.answer(s.transfer),
			Doc: openapi.Operation{Summary: "Ask the leader to hand over to a candidate in line.", Query: []openapi.Parameter{{Name: "to", Doc: "the node that is to lead"}, force, wait},
				Headers: []openapi.Parameter{match}, In: StepDownRequest{}, InOptional: true, Out: openapi.Answers{200: SteppedDown{}, 202: SteppedDown{}, 409: nil, 412: nil}},
		},
		{
			Method: "GET", Path: "/nodes/{node}", Verb: auth.Observe, Handle: s.answer(s.getNode),
			Doc: openapi.Operation{Summary: "What is laid down for a node.", Out: openapi.Answers{200: Node{}}},
		},
		{
			Method: "PUT", Path: "/nodes/{node}/cordon", Verb: auth.Admin, Handle: s.answer(s.cordon),
			Doc: openapi.Operation{Summary: "Keep a node from beginning to lead anything.", In: CordonRequest{}, InOptional: true, Out: openapi.Answers{200: Node{}, 409: nil}},
		},
		{
			Method: "DELETE", Path: "/nodes/{node}/cordon", Verb: auth.Admin, Handle: s.answer(s.uncordon),
			Doc: openapi.Operation{Summary: "Lift that.", Out: openapi.Answers{200: Node{}, 409: nil}},
		},
		{
			Method: "GET", Path: "/metrics", Verb: auth.Observe, Handle: s.metrics.handler().ServeHTTP,
			Doc: openapi.Operation{Summary: "Metrics for Prometheus.", Out: openapi.Answers{200: openapi.Text}},
		},
		{
			Method: "GET", Path: "/healthz", Verb: auth.Open, Handle: s.answer(s.health),
			Doc: openapi.Operation{Summary: "Whether this instance reaches its engine.", Out: openapi.Answers{200: Health{}, 503: Health{}}},
		},
		{
			Method: "GET", Path: "/openapi.json", Verb: auth.Open, Handle: s.answer(s.serveDocument),
			Doc: openapi.Operation{Summary: "This description.", Out: openapi.Answers{200: openapi.Object}},
		},
	}
}

func (s *Service) health(w http.ResponseWriter, _ *http.Request) error {
	if !s.metrics.reachable() {
		w.Header().Set("Retry-After", "1")
		httpapi.WriteJSON(w, http.StatusServiceUnavailable, Health{Status: "engine_unreachable", Deployment: s.deployment})
		return nil
	}
	httpapi.WriteJSON(w, http.StatusOK, Health{Status: "ok", Deployment: s.deployment})
	return nil
}

func (s *Service) serveDocument(w http.ResponseWriter, _ *http.Request) error {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "max-age=60")
	_, _ = w.Write(s.document)
	return nil
}
