package feed

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// MaxGroups is how many groups one stream may have: a cursor names them all, and clients send
// it in a header.
const MaxGroups = 64

// ErrCursor: the text is not a cursor.
var ErrCursor = errors.New("not a cursor of this service")

// Place is a position in the history of one group.
type Place struct {
	Group string
	store.Cursor
}

// Cursor is the position of an observer in each of its groups. It is valid on every instance
// of the service: a position is a token, and whether the group was led or vacant after it.
type Cursor struct {
	Deployment string
	Places     []Place
}

const cursorVersion = "1"

// String encodes the cursor. It is opaque to clients.
func (c Cursor) String() string {
	var b strings.Builder
	b.WriteString(cursorVersion + ";" + c.Deployment)
	for _, p := range c.Places {
		b.WriteString(";" + p.Group + "=" + p.Token.String() + p.State.String()[:1])
	}
	return base64.RawURLEncoding.EncodeToString([]byte(b.String()))
}

// ParseCursor decodes what String encoded. ErrCursor: anything else.
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
	if !found || !store.ValidName(group) || len(at) < 2 {
		return Place{}, ErrCursor
	}
	states := []tenure.State{tenure.Unknown, tenure.Vacant, tenure.Led}
	i := slices.IndexFunc(states, func(s tenure.State) bool { return s.String()[0] == at[len(at)-1] })
	token, err := fence.ParseToken(at[:len(at)-1])
	if i < 0 || err != nil && at[:len(at)-1] != "0" {
		return Place{}, ErrCursor
	}
	return Place{Group: group, Cursor: store.Cursor{Token: token, State: states[i]}}, nil
}

func (c Cursor) has(group string) bool {
	return slices.ContainsFunc(c.Places, func(p Place) bool { return p.Group == group })
}

// place returns the position in a group; a zero State means that there is none.
func (c Cursor) place(group string) store.Cursor {
	for _, p := range c.Places {
		if p.Group == group {
			return p.Cursor
		}
	}
	return store.Cursor{}
}

// at is the position of a view.
func at(v store.View) store.Cursor { return store.Cursor{Token: v.Token, State: v.State} }

// before reports whether a is an earlier position than b in the history of one group.
func before(a, b store.Cursor) bool {
	if a.Token != b.Token {
		return a.Token < b.Token
	}
	return a.State == tenure.Led && b.State == tenure.Vacant
}
