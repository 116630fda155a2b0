package store

import (
	"context"
	"iter"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
)

// Store is what an engine must do. It is small on purpose: sessions that die
// for good, and one record per group that is changed by compare-and-set. Package
// storetest holds the contract as tests; an engine is one when it passes them.
//
// Errors. A call answers definitely (see Definite) or its outcome is unknown: it
// may have taken effect, may take effect later, or never. Every call obeys its
// context and returns soon after it ends; then the outcome is unknown.
//
// S1: a session's death is final. Its id is never used again, and no call
// brings it back.
// S2: a group is led if and only if its record names a living session.
// S3: a record is never deleted, except by Retire (see Retirer), its version and its token never go back, and
// each grant has a larger token than every earlier one of the group.
// S4: a record changes only from the version that the caller saw.
// S5: a session dies no earlier than its TTL after the last acknowledged
// keep-alive was received, by the engine's clock.
type Store interface {
	// Caps is known without asking the engine.
	Caps() Caps

	// Open begins a session for a candidate. The granted TTL may differ from the one
	// asked for: callers count on what was granted. With an Attempt the call is
	// idempotent: while the session of that attempt lives, another Open with the same
	// arguments renews and returns it, so a lost reply leaves no session behind.
	// Other arguments under a living attempt are refused (ErrInvalid).
	Open(ctx context.Context, c tenure.Candidate, ttl time.Duration, o OpenOptions) (Session, error)

	// Session returns a living session. ErrSessionDead is definite.
	Session(ctx context.Context, id SessionID) (Session, error)

	// KeepAlive extends a living session and returns the requests for it. It also reads
	// the records of the named groups, at most Caps().Batch, while the session lives: if
	// such a record names the session, the session leads that group. If the store found
	// another holder dead, the last term in its record is marked as ended.
	// ErrSessionDead is definite.
	KeepAlive(ctx context.Context, id SessionID, groups ...string) (Beat, error)

	// End ends a session and, at once, everything it holds. Closing a dead session
	// succeeds. The reason is recorded where the engine can. Suspected is refused
	// (ErrInvalid) unless the session was opened as Fenced. With seen, at most
	// Caps().Batch records, it closes only if each still has that version, and returns
	// a ConflictError otherwise: so it never ends a grant that was made meanwhile.
	End(ctx context.Context, id SessionID, why Reason, seen ...Record) error

	// Acquire grants the vacant records to the session if their versions are still the
	// ones seen; nothing else of seen is used. Version 0 means never granted. The token
	// follows the one that the store has read. It grants all or nothing, and at most
	// Caps().Batch records. ErrSessionDead, a ConflictError that shows the records that
	// were not as seen or not vacant, and ErrRewound are definite.
	Acquire(ctx context.Context, id SessionID, seen ...Record) ([]Record, error)

	// Release gives up the records, at most Caps().Batch, that the session holds in
	// exactly these versions: all or none. They become vacant, or, with to, are granted
	// to that session with their next tokens. A successor that is dead, unknown, the
	// holder itself or not a candidate for a group is ErrSuccessor, and nothing changes.
	// A record that moved on is a ConflictError.
	Release(ctx context.Context, id, to SessionID, why Reason, held ...Record) ([]Record, error)

	// Ask leaves a request for the owner of a session, which gets it with its next
	// beats until it answers or the request expires. Asking again with the same
	// id changes nothing. A session holds MaxRequests at most: ErrBusy.
	Ask(ctx context.Context, id SessionID, r Request) error
	// Answer is the owner's: the request is done with.
	Answer(ctx context.Context, id SessionID, request string, a Answer) error
	// Answered returns the answer to a request; an Answer without an outcome means
	// that it is still waiting. ErrNotFound: never asked, or expired.
	Answered(ctx context.Context, id SessionID, request string) (Answer, error)

	// Read answers linearizably. A group that was never granted has version 0. While
	// Rewound, a group that is held by a session of this store is ErrRewound.
	Read(ctx context.Context, group string) (View, error)

	// Watch yields the living sessions and the view of every group in scope that has
	// a record, then Synced, then each session that begins or ends and each group that
	// changes. What it yields up to Synced is linearizable: it includes everything
	// acknowledged before Watch was called. After that it is level-triggered: states in
	// between may be skipped, but the terms in the record tell that they happened. When
	// a holder's session dies its groups are yielded as vacant, after a linearizable
	// check. A watch that can no longer see the engine ends with an error in bounded
	// time; the caller starts again.
	Watch(ctx context.Context, scope Scope) iter.Seq2[Update, error]

	// Groups lists views in the order of their names.
	Groups(ctx context.Context, scope Scope, p Page) ([]View, error)
	// Sessions lists the living sessions that stand for anything in scope, in
	// line: higher priority first, then older. After is the last id of the page
	// before.
	Sessions(ctx context.Context, scope Scope, p Page) ([]Session, error)
	// History lists ended and present terms of a group, newest first; After is the
	// token before which to go on. Engines keep at least HistoryKept.
	History(ctx context.Context, group string, p Page) ([]Term, error)

	// Meta describes the deployment.
	Meta(ctx context.Context) (Meta, error)
	// RaiseEpoch lifts the epoch of the deployment to a larger one and clears
	// Rewound: from then on every grant has a token above all of the older epochs.
	RaiseEpoch(ctx context.Context, to uint64) (Meta, error)
	// Suspect reports that the newest grant of the group is wrong: a sink has seen
	// the token seen, which the engine has not granted before that grant, or granted
	// to another session. The engine lost data, so it sets Rewound. It does nothing if
	// the group has a larger token by now, or if the epoch is above that of seen: then
	// an operator has raised it, and the report is late.
	Suspect(ctx context.Context, group string, seen fence.Token) error

	// Attributes reads what is attached to a name; never set is version 0.
	Attributes(ctx context.Context, name string) (Attributes, error)
	// ListAttributes lists the attributes whose names begin with prefix, such as "group/", by
	// name. Removed attributes that keep a version are listed, without values.
	ListAttributes(ctx context.Context, prefix string, p Page) ([]Attributes, error)
	// SetAttributes writes from the version seen; another version is a
	// ConflictError. Empty values remove. What was removed from "group/..." or "node/..."
	// keeps a version; any other name is as if it was never set.
	SetAttributes(ctx context.Context, seen Attributes) (Attributes, error)
}

// Caps say what an engine can do, and what it cannot.
type Caps struct {
	Engine string        // its name, such as "etcd"
	MinTTL time.Duration // shorter ones are granted as this
	MaxTTL time.Duration
	Step   time.Duration // TTLs are rounded up to a multiple; 0: they are not
	Batch  int           // records in one Acquire, Release, Close or KeepAlive
	// Observed: the engine does not expire sessions by itself. Candidates observe the
	// sessions of leaders and end those that are silent for a TTL. A session that
	// nobody observes lives on, and whoever begins to observe waits for a whole TTL.
	Observed bool
	// Lateness is how long after its TTL the death of a session may show. See Late.
	Lateness time.Duration
	// Loses says in one sentence when the engine can lose what it acknowledged; "" never.
	Loses string
}

// Observations is how often candidates read the beat of a session during its TTL, if Observed.
const Observations = 8

// Late is how long after its TTL the death of a session may show, for a TTL.
func (c Caps) Late(ttl time.Duration) time.Duration {
	if c.Observed {
		return c.Lateness + ttl/Observations
	}
	return c.Lateness
}

// UpdateKind says what a watch has seen.
type UpdateKind uint8

// The kinds of updates.
const (
	GroupChanged UpdateKind = iota + 1 // View
	SessionBegan                       // Session
	SessionEnded                       // Session (at least its ID), Reason
	Synced                             // the snapshot is complete
)

// Update is one thing that a watch has seen.
type Update struct {
	Kind    UpdateKind
	View    View
	Session Session
	Reason  Reason
}

const (
	// TermsKept is how many terms a record carries.
	TermsKept = 8
	// HistoryKept is how many terms of a group an engine keeps at least.
	HistoryKept = 256
	// MaxRequests waiting for one session.
	MaxRequests = 64
	// MaxPage bounds what one call lists.
	MaxPage = 1000
	// MaxMetadata bounds keys and values of metadata or attributes together.
	MaxMetadata = 4096
	// MaxScope bounds the patterns of a scope.
	MaxScope = 1024
)

// SessionID names a session. Engines choose it.
type SessionID string

// OpenOptions say what a session is for and which process opens it.
type OpenOptions struct {
	// Scope lists the groups that the session may lead. Required.
	Scope Scope
	// Instance identifies one start of a process: 16 to 64 characters, random, never
	// used by another process or after a restart. Stores keep only its digest.
	// Optional; without it no later call can prove that it comes from this process.
	Instance string
	// Attempt names this session among those of the instance, so that Open can be
	// retried. Optional; it needs an Instance.
	Attempt string
	// Fenced promises that every group of this session writes only to fenced sinks.
	Fenced bool
	// Successor promises that the owner waits for every group in scope that it does not
	// lead, and releases at once what it does not take. A leader that resigns hands over to
	// such sessions only, unless it names a candidate.
	Successor bool
}

// Session is the store's evidence that one instance of a candidate is alive. Its JSON form
// has no TTL: package wire adds it in milliseconds.
type Session struct {
	ID         SessionID        `json:"session"`
	Candidate  tenure.Candidate `json:"candidate"`
	Instance   string           `json:"instance,omitempty"`  // digest of the instance, "" if it gave none
	Scope      Scope            `json:"scope"`               // the groups it may lead
	TTL        time.Duration    `json:"-"`                   // granted
	Fenced     bool             `json:"fenced,omitempty"`    // see OpenOptions
	Successor  bool             `json:"successor,omitempty"` // see OpenOptions
	Deployment string           `json:"deployment"`          // of the store, for stamps
	Opened     uint64           `json:"opened"`              // larger is younger
}

// Beat is the answer to a keep-alive.
type Beat struct {
	TTL      time.Duration // from when the engine received it
	Requests []Request     // not answered yet
	Records  []Record      // of the groups that were named, in their order
}

// Reason says why a term or session ended.
type Reason string

// The reasons that are recorded.
const (
	Expired     Reason = "expired"     // its session ran out
	Lost        Reason = "lost"        // its session was found dead
	Closed      Reason = "closed"      // its session was closed
	Resigned    Reason = "resigned"    // given up by its holder
	Transferred Reason = "transferred" // handed to a successor
	SteppedDown Reason = "stepped-down"
	Unhealthy   Reason = "unhealthy"
	Forced      Reason = "forced"    // an operator closed the session
	Died        Reason = "died"      // its process has died: the kernel said so
	Suspected   Reason = "suspected" // its process has probably died, and everything it writes is fenced
)

// Record is the election's memory of one group.
type Record struct {
	Group   string      `json:"group"`
	Version uint64      `json:"version"`          // grows with every change, in steps of the engine's own; 0: never granted
	Token   fence.Token `json:"token"`            // of the newest grant, 0: none
	Holder  SessionID   `json:"holder,omitempty"` // "": released
	// Candidate holds the group, or held it last.
	Candidate tenure.Candidate `json:"candidate"`
	// Terms are the newest TermsKept terms, oldest first. The last one is the
	// present one while it has no end.
	Terms []Term `json:"terms,omitempty"`
}

// Term is what remains of a term in the record. Its times are the engine's wall
// clock: for people, never for decisions.
type Term struct {
	Token     fence.Token `json:"token"`
	Candidate string      `json:"candidate"`
	Session   SessionID   `json:"session"`
	Begin     time.Time   `json:"begin"`
	End       time.Time   `json:"end,omitzero"` // zero: not ended, or its end is not recorded yet
	Reason    Reason      `json:"reason,omitempty"`
}

// View is a record and whether its holder lives.
type View struct {
	Record
	State tenure.State // Vacant or Led
}

// Verb is what a request asks.
type Verb string

// The verbs.
const (
	StepDown Verb = "step-down"
	Transfer Verb = "transfer"
)

// Request is what somebody asks of the owner of a session. Nobody takes one
// grant out of a living session: its owner is asked, and answers. Its JSON form has no
// durations: package wire adds them in milliseconds.
type Request struct {
	ID       string        `json:"id"`
	Verb     Verb          `json:"verb"`
	Group    string        `json:"group"`
	Token    fence.Token   `json:"token,omitempty"`  // the term that is meant; 0: whichever
	To       string        `json:"to,omitempty"`     // transfer: candidate
	Reason   string        `json:"reason,omitempty"` // for people
	CoolDown time.Duration `json:"-"`                // how long the owner does not campaign for the group
	TTL      time.Duration `json:"-"`                // how long the request waits
}

// Answer is the owner's.
type Answer struct {
	Outcome Outcome `json:"outcome,omitempty"`
	Detail  string  `json:"detail,omitempty"`
}

// Outcome of a request.
type Outcome string

// The outcomes.
const (
	Done    Outcome = "done"
	Refused Outcome = "refused"
)

// Page selects part of a listing: up to Limit (0: MaxPage) after After.
type Page struct {
	After string
	Limit int
}

// Meta describes a deployment: one store, with its groups, for ever.
type Meta struct {
	Deployment string `json:"deployment"`
	Epoch      uint64 `json:"epoch"`
	// Index is the highest the engine was seen at.
	Index uint64 `json:"index"`
	// Rewound: the engine went back behind what it had acknowledged. Until the
	// epoch is raised Open, KeepAlive, Acquire, and Release to a successor answer
	// ErrRewound: who led before stops, and nobody begins. Whoever raises it waits
	// for one TTL first.
	Rewound bool `json:"rewound"`
	// Why says what shows that it went back, for people. It may be empty.
	Why string `json:"why,omitempty"`
}

// Attributes are small values attached to a name such as "group/billing" or
// "node/a": policy, cool-down, cordon.
type Attributes struct {
	Name    string            `json:"name"`
	Version uint64            `json:"version"`
	Values  map[string]string `json:"values,omitempty"`
}
