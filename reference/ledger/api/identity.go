package api

import (
	"strconv"
	"strings"
)

// Identity says which ledger it is and how many commits it has made. The id is created with the
// database, and again when an operator accepts a restored one. The revision rises with every
// commit, so a ledger whose revision has fallen has lost data.
type Identity struct {
	ID       string `json:"id"`
	Revision uint64 `json:"revision"`
}

func (i Identity) String() string { return i.ID + ":" + strconv.FormatUint(i.Revision, 10) }

// ParseIdentity reads what String returns. An empty text is the zero Identity.
func ParseIdentity(text string) (Identity, error) {
	if text == "" {
		return Identity{}, nil
	}
	id, revision, _ := strings.Cut(text, ":")
	n, err := strconv.ParseUint(revision, 10, 63)
	if err != nil || Name("identity", id) != nil {
		return Identity{}, &RequestError{Field: HeaderIdentity, Value: text[:min(len(text), 64)], Rule: "id:revision, as the ledger sent it"}
	}
	return Identity{ID: id, Revision: n}, nil
}
