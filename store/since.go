package store

import (
	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
)

// Leader turns a view into what observers get.
func (v View) Leader() tenure.Leader {
	l := tenure.Leader{Group: v.Group, State: v.State, Candidate: v.Candidate, Token: v.Token}
	if k := len(v.Terms); k > 0 {
		l.Since = v.Terms[k-1].Begin
		if v.State == tenure.Vacant {
			l.Reason = string(v.Terms[k-1].ended())
		}
	}
	return l
}

// ended is the reason of a term that is over: one that died with its session and
// was not written down yet has expired.
func (t Term) ended() Reason {
	if t.Reason == "" {
		return Expired
	}
	return t.Reason
}

// Cursor is a place in a group's history: led with a token, or vacant after it.
// Each occurs once.
type Cursor struct {
	Token fence.Token
	State tenure.State
}

// Since lists what happened to a group after the cursor, up to the view: each
// term that began and each that ended. complete is false if some are older than
// the record remembers; the list then begins with the oldest it has.
func Since(v View, after Cursor) (changes []tenure.Leader, complete bool) {
	if v.Token < after.Token {
		// The store was rewound: what it says now is all there is.
		return []tenure.Leader{v.Leader()}, false
	}
	// Counters begin at 1: whoever has seen nothing has missed nothing if that one
	// is still here.
	complete = after.Token == 0 && (len(v.Terms) == 0 || v.Terms[0].Token.Counter() == 1)
	for i, t := range v.Terms {
		newest := i == len(v.Terms)-1
		switch {
		case t.Token < after.Token:
			complete = true
			continue
		case t.Token == after.Token:
			complete = true
		default:
			l := tenure.Leader{Group: v.Group, State: tenure.Led, Candidate: tenure.Candidate{ID: t.Candidate}, Token: t.Token, Since: t.Begin}
			if newest {
				l.Candidate = v.Candidate
			}
			changes = append(changes, l)
		}
		over := !newest || v.State == tenure.Vacant
		if over && (t.Token > after.Token || after.State != tenure.Vacant) {
			l := tenure.Leader{Group: v.Group, State: tenure.Vacant, Candidate: tenure.Candidate{ID: t.Candidate}, Token: t.Token, Since: t.Begin, Reason: string(t.ended())}
			if newest {
				l.Candidate = v.Candidate
			}
			changes = append(changes, l)
		}
	}
	if v.Token == 0 && after.State != tenure.Vacant {
		changes = append(changes, v.Leader())
	}
	return changes, complete
}
