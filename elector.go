package tenure

import (
	"context"
	"iter"
	"time"

	"github.com/tenurehq/tenure/fence"
)

// Candidate is a process that wants to lead.
type Candidate struct {
	// ID names the process among its peers: lower-case letters, digits, '.',
	// '_' and '-', at most 63, beginning with a letter or digit.
	ID string `json:"id"`
	// Address is where others reach it. It is passed on as it is.
	Address string `json:"address,omitempty"`
	// Metadata is passed on to observers; at most 4 KiB in all.
	Metadata map[string]string `json:"metadata,omitempty"`
	// Priority orders the candidates in line: higher first, equal by age. Candidates of equal
	// priority that campaign for several groups are ordered differently in each group.
	Priority int `json:"priority,omitempty"`
}

// State says what is known about the leadership of a group.
type State uint8

const (
	// Unknown: the engine could not be asked, or the watch was interrupted.
	// It is never a synonym for Vacant.
	Unknown State = iota
	// Vacant: nobody holds the group.
	Vacant
	// Led: a living session holds the group.
	Led
)

func (s State) String() string {
	switch s {
	case Vacant:
		return "vacant"
	case Led:
		return "led"
	default:
		return "unknown"
	}
}

// Leader is what an observer sees of a group at one moment. It is a hint about
// whom to talk to, never a permission to act: by the time it is read, another
// may lead.
type Leader struct {
	Group string
	State State
	// Candidate leads while State is Led; otherwise it is the one that led
	// last, if that is known.
	Candidate Candidate
	// Token belongs to the newest term of the group, ended or not; 0 is none.
	Token fence.Token
	// Since is when that term began, by the engine's wall clock: for people.
	Since time.Time
	// Reason says why the newest term ended, where State is Vacant.
	Reason string
}

// Elector stands for one candidate in one group. Package lease builds it on any
// lease store, package raft on a Raft cluster.
type Elector interface {
	// Campaign blocks until this candidate leads, and returns its term. An error
	// means that it does not lead: ctx ended, the elector was closed, or the engine
	// refuses for a reason that does not pass by itself (wrong password, missing
	// permission, a newer format). An engine that is down or slow is not an error:
	// the campaign goes on.
	//
	// While this candidate leads, or the work of an earlier term of its has not
	// returned (Resign says that it has), a campaign is refused: two terms of one
	// process must not overlap either.
	//
	// The term outlives ctx. It ends by itself, or by Resign or TransferTo.
	Campaign(ctx context.Context) (*Term, error)

	// Leader asks the engine; the answer is linearizable.
	Leader(ctx context.Context) (Leader, error)

	// Leaders yields the leader now and after each change, until ctx ends or the
	// loop is left. States in between may be skipped, but never that a term
	// happened. While the engine cannot be seen it yields Unknown with the
	// error, and goes on.
	Leaders(ctx context.Context) iter.Seq2[Leader, error]
}
