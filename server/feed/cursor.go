package feed

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
)

// MaxGroups is how many groups one subscription names: a cursor names them all, and
// comes back in a header.
const MaxGroups = 64

// ErrCursor: the text is no cursor of ours.
var ErrCursor = errors.New("no cursor that this service has given out")

// Place is where an observer stands in the history of one group.
type Place struct {
	Group string
	lease.Cursor
}

// Cursor is where an observer stands in each of its groups. It holds on every instance
// of the service, for the places are the engine's: a token, and whether it was led or
// vacant after it.
type Cursor struct {
	Deployment string
	Places     []Place
}

const cursorVersion = "1"

// String writes the cursor as callers get it, opaque.
func (c Cursor) String() string {
	var b strings.Builder
	b.WriteString(cursorVersion + ";" + c.Deployment)
	for _, p := range c.Places {
		state := "u"
		switch p.State {
		case tenure.Led:
			state = "l"
		case tenure.Vacant:
			state = "v"
		}
		b.WriteString(";" + p.Group + "=" + p.Token.String() + state)
	}
	return base64.RawURLEncoding.EncodeToString([]byte(b.String()))
}

// ParseCursor reads what String wrote. ErrCursor: anything else.
func ParseCursor(s string) (Cursor, error) {
	const most = MaxGroups * 128
	if len(s) > most {
		return Cursor{}, fmt.Errorf("%d bytes: %w", len(s), ErrCursor)
	}
	raw, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return Cursor{}, ErrCursor
	}
	parts := strings.Split(string(raw), ";")
	if len(parts) < 2 || parts[0] != cursorVersion || len(parts)-2 > MaxGroups {
		return Cursor{}, ErrCursor
	}
	c := Cursor{Deployment: parts[1]}
	for _, part := range parts[2:] {
		p, err := parsePlace(part)
		if err != nil || c.has(p.Group) {
			return Cursor{}, ErrCursor
		}
		c.Places = append(c.Places, p)
	}
	return c, nil
}

func parsePlace(s string) (Place, error) {
	group, at, found := strings.Cut(s, "=")
	if !found || !lease.ValidName(group) || len(at) < 2 {
		return Place{}, ErrCursor
	}
	p := Place{Group: group}
	switch at[len(at)-1] {
	case 'l':
		p.State = tenure.Led
	case 'v':
		p.State = tenure.Vacant
	case 'u':
		p.State = tenure.Unknown
	default:
		return Place{}, ErrCursor
	}
	digits := at[:len(at)-1]
	if digits == "0" {
		return p, nil
	}
	token, err := fence.ParseToken(digits)
	if err != nil {
		return Place{}, ErrCursor
	}
	p.Token = token
	return p, nil
}

func (c Cursor) has(group string) bool {
	return slices.ContainsFunc(c.Places, func(p Place) bool { return p.Group == group })
}

// place returns where the cursor stands in a group; a zero State is nowhere.
func (c Cursor) place(group string) lease.Cursor {
	for _, p := range c.Places {
		if p.Group == group {
			return p.Cursor
		}
	}
	return lease.Cursor{}
}

// at is the place that a view stands for.
func at(v lease.View) lease.Cursor { return lease.Cursor{Token: v.Token, State: v.State} }

// before reports whether a is an earlier place than b in the history of one group.
func before(a, b lease.Cursor) bool {
	if a.Token != b.Token {
		return a.Token < b.Token
	}
	return a.State == tenure.Led && b.State == tenure.Vacant
}
