package service

import (
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/server/feed"
	"github.com/tenurehq/tenure/server/operator"
)

// CampaignRequest asks to lead a group.
type CampaignRequest struct {
	NodeID   string            `json:"node_id" doc:"who wants to lead; must be the caller's own identity"`
	TTLMS    int64             `json:"ttl_ms,omitempty" doc:"how long the lease lasts after the last renewal; 0: the default of the deployment"`
	TTL      Duration          `json:"ttl,omitempty" doc:"the same as a duration such as 15s, or in seconds"`
	Metadata map[string]string `json:"metadata,omitempty" doc:"passed on to observers, at most 4 KiB in all"`
	Address  string            `json:"address,omitempty" doc:"where others reach the node; passed on as it is"`
	Priority int               `json:"priority,omitempty" doc:"higher values are elected first"`
	Instance string            `json:"instance,omitempty" doc:"16 to 64 random characters, chosen once per process start: a retry with the same node_id and instance gets the same answer; without it every call counts as another process"`
	Session  string            `json:"session,omitempty" doc:"handle of POST /sessions: lead within that session instead of a new one"`
}

// Leading is the answer to a campaign that was won.
type Leading struct {
	Group        string            `json:"group"`
	LeaderNodeID string            `json:"leader_node_id"`
	Term         fence.Token       `json:"term" doc:"the fencing token: send it with every write"`
	TTLMS        int64             `json:"ttl_ms" doc:"count it from when the request was sent, plus held_ms"`
	HeldMS       int64             `json:"held_ms" doc:"how long the request had waited here when the lease began, reduced by the possible drift between the clocks of service and client"`
	Expiry       string            `json:"expiry" doc:"when the lease ends without a renewal, by this instance's wall clock: for people; count ttl_ms on your own clock"`
	Handle       string            `json:"handle" doc:"opaque; renew and resign with it, on any instance"`
	Metadata     map[string]string `json:"metadata"`
	Deployment   string            `json:"deployment" doc:"for stamps"`
	Fenced       bool              `json:"fenced" doc:"whether the group's policy says that its resources check the term"`
}

// RenewRequest extends a lease.
type RenewRequest struct {
	NodeID     string      `json:"node_id"`
	Term       fence.Token `json:"term"`
	Handle     string      `json:"handle,omitempty" doc:"as the campaign answered it; without it the session is found by the term, which takes one more read"`
	ExtendByMS int64       `json:"extend_by_ms,omitempty" doc:"how long the lease shall last from now on. The TTL of a session is fixed when it is opened, so that TTL is granted: see extended_by_ms"`
	ExtendBy   Duration    `json:"extend_by,omitempty" doc:"the same as a duration such as 15s, or in seconds"`
}

// Renewed is the answer to a renewal.
type Renewed struct {
	Group          string      `json:"group"`
	LeaderNodeID   string      `json:"leader_node_id"`
	Term           fence.Token `json:"term"`
	TTLMS          int64       `json:"ttl_ms" doc:"count it from when the request was sent"`
	Expiry         string      `json:"expiry" doc:"as in the answer to a campaign"`
	ExtendedByMS   int64       `json:"extended_by_ms,omitempty" doc:"with extend_by: what was granted, the TTL of the session"`
	GroupsExtended int         `json:"groups_extended,omitempty" doc:"with extend_by: how many groups the session leads, as far as this instance knows; a session is extended as a whole"`
	Requests       []Request   `json:"requests,omitempty" doc:"requests to the leader: stop work, then resign"`
}

// Request is what an operator asks of a leader.
type Request struct {
	ID       string      `json:"id"`
	Verb     string      `json:"verb" enum:"step-down,transfer"`
	Group    string      `json:"group"`
	Term     fence.Token `json:"term,omitempty"`
	To       string      `json:"to,omitempty" doc:"resign with this successor"`
	Reason   string      `json:"reason,omitempty"`
	CoolDown int64       `json:"cool_down_ms,omitempty"`
}

// ResignRequest ends a term.
type ResignRequest struct {
	NodeID    string      `json:"node_id"`
	Term      fence.Token `json:"term"`
	Handle    string      `json:"handle"`
	Successor string      `json:"successor,omitempty" doc:"the candidate that leads next; default: the one in a pending transfer request"`
}

// Resigned is the answer to a resignation.
type Resigned struct {
	Group        string      `json:"group"`
	Term         fence.Token `json:"term" doc:"the term that has ended, or the term of the successor"`
	LeaderNodeID string      `json:"leader_node_id" doc:"the successor, or empty"`
}

// Leader is who leads a group.
type Leader struct {
	Group            string            `json:"group"`
	LeaderNodeID     string            `json:"leader_node_id"`
	Address          string            `json:"address,omitempty"`
	Term             fence.Token       `json:"term"`
	Expiry           string            `json:"expiry,omitempty" doc:"when the lease ends at most without another renewal, by this instance's wall clock; absent if this instance does not know; never a permission"`
	LeaseRemainingMS *int64            `json:"lease_remaining_ms,omitempty" doc:"how long the lease lasts at most without another renewal, as far as this instance knows; absent if it does not know; never a permission"`
	Metadata         map[string]string `json:"metadata"`
	SinceMS          int64             `json:"since_ms" doc:"when the term began, by the engine's wall clock"`
	AgeMS            *int64            `json:"age_ms,omitempty" doc:"with ?stale: how old the answer is at most"`
}

// Poll is the answer to a long poll.
type Poll struct {
	Events []feed.Event `json:"events"`
	Cursor string       `json:"cursor" doc:"ask again with ?after="`
}

// SessionRequest opens a session for many groups.
type SessionRequest struct {
	NodeID   string            `json:"node_id"`
	Groups   []string          `json:"groups" doc:"names, or prefixes followed by *"`
	TTLMS    int64             `json:"ttl_ms,omitempty"`
	TTL      Duration          `json:"ttl,omitempty" doc:"the same as a duration such as 15s, or in seconds"`
	Metadata map[string]string `json:"metadata,omitempty"`
	Address  string            `json:"address,omitempty"`
	Priority int               `json:"priority,omitempty"`
	Instance string            `json:"instance,omitempty" doc:"as in a campaign: a retry with the same node_id, instance and groups gets the same session"`
}

// Session is an open session.
type Session struct {
	Handle     string   `json:"handle"`
	NodeID     string   `json:"node_id"`
	Groups     []string `json:"groups"`
	TTLMS      int64    `json:"ttl_ms" doc:"count it from when the request was sent"`
	Deployment string   `json:"deployment"`
}

// Beat is the answer to a keep-alive.
type Beat struct {
	TTLMS    int64     `json:"ttl_ms" doc:"count it from when the request was sent"`
	Expiry   string    `json:"expiry" doc:"as in the answer to a campaign"`
	Requests []Request `json:"requests,omitempty"`
}

// BatchRequest campaigns for many groups within a session.
type BatchRequest struct {
	Groups []string `json:"groups" doc:"at most 1000 names"`
}

// Batch is the answer to a BatchRequest.
type Batch struct {
	Led     []BatchTerm   `json:"led"`
	Refused []BatchRefuse `json:"refused"`
	TTLMS   int64         `json:"ttl_ms" doc:"count it from when the request was sent, plus held_ms"`
	HeldMS  int64         `json:"held_ms"`
	Expiry  string        `json:"expiry" doc:"as in the answer to a campaign"`
}

// BatchTerm is a group that the session leads.
type BatchTerm struct {
	Group string      `json:"group"`
	Term  fence.Token `json:"term"`
}

// BatchRefuse is a group that the session does not lead.
type BatchRefuse struct {
	Group        string      `json:"group"`
	Code         string      `json:"code" doc:"as in a problem"`
	LeaderNodeID string      `json:"leader_node_id,omitempty"`
	Term         fence.Token `json:"term,omitempty"`
}

// Closed is the answer after a session was closed.
type Closed struct {
	Groups []string `json:"groups" doc:"the groups that it led"`
}

// GroupPolicy has the rules of a group.
type GroupPolicy = operator.GroupPolicy

// Group is a group and its policy.
type Group struct {
	Group        string       `json:"group"`
	State        string       `json:"state" enum:"led,vacant"`
	LeaderNodeID string       `json:"leader_node_id,omitempty"`
	Term         fence.Token  `json:"term" doc:"of the newest term, ended or not; 0: never led"`
	Declared     bool         `json:"declared,omitempty" doc:"created by PUT"`
	Deleted      bool         `json:"deleted,omitempty"`
	Policy       *GroupPolicy `json:"policy,omitempty"`
	Version      uint64       `json:"version,omitempty" doc:"of the policy; also the ETag"`
}

// Groups is a page of groups.
type Groups struct {
	Groups []Group `json:"groups"`
	Next   string  `json:"next,omitempty" doc:"ask again with ?after="`
}

// Term is an ended or present term.
type Term struct {
	Term       fence.Token `json:"term"`
	NodeID     string      `json:"leader_node_id"`
	BeginMS    int64       `json:"begin_ms"`
	EndMS      int64       `json:"end_ms,omitempty" doc:"absent while it lasts"`
	DurationMS int64       `json:"duration_ms"`
	Reason     string      `json:"reason,omitempty" doc:"why it ended"`
}

// History is a page of terms, newest first.
type History struct {
	Group string `json:"group"`
	Terms []Term `json:"terms"`
	Next  string `json:"next,omitempty" doc:"ask again with ?after="`
}

// Candidate is a candidate of a group.
type Candidate struct {
	NodeID   string            `json:"node_id"`
	Address  string            `json:"address,omitempty"`
	Priority int               `json:"priority,omitempty"`
	Metadata map[string]string `json:"metadata,omitempty"`
	TTLMS    int64             `json:"ttl_ms"`
	Leads    bool              `json:"leads,omitempty"`
	Barred   string            `json:"barred,omitempty" doc:"why it may not begin to lead the group: cordoned, cooling_down, not_a_member or unknown_group"`
}

// Candidates is a page of candidates, in order.
type Candidates struct {
	Group      string      `json:"group"`
	Candidates []Candidate `json:"candidates"`
	Next       string      `json:"next,omitempty" doc:"ask again with ?after="`
}

// StepDownRequest asks a leader to step down.
type StepDownRequest struct {
	Reason     string `json:"reason,omitempty"`
	CoolDownMS int64  `json:"cool_down_ms,omitempty" doc:"how long the node may not lead the group again"`
}

// SteppedDown is the outcome of a StepDownRequest.
type SteppedDown struct {
	Group        string      `json:"group"`
	Term         fence.Token `json:"term" doc:"the term that was meant"`
	Outcome      string      `json:"outcome" enum:"done,refused,ended,waiting,forced"`
	Detail       string      `json:"detail,omitempty"`
	AlsoEnded    []string    `json:"also_ended,omitempty" doc:"force: the other groups that the closed session led"`
	LeaderNodeID string      `json:"leader_node_id,omitempty" doc:"who leads now, if that is known"`
}

// Node has the rules of a node.
type Node struct {
	NodeID   string `json:"node_id"`
	Cordoned bool   `json:"cordoned" doc:"the node may not begin to lead anything"`
	Reason   string `json:"reason,omitempty"`
}

// CordonRequest cordons a node.
type CordonRequest struct {
	Reason string `json:"reason,omitempty"`
}

// Health is the health of an instance.
type Health struct {
	Status     string `json:"status" enum:"ok,engine_unreachable"`
	Deployment string `json:"deployment"`
}
