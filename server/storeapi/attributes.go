package storeapi

import (
	"strings"

	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/store"
)

// subject says what attributes are about, from their name. At most one of group and node is
// set. Without either, they belong to nobody, or to the service itself if hidden.
type subject struct {
	group  string
	mark   bool // what the candidates of the group wrote, not a rule for the group
	node   string
	hidden bool
}

func subjectOf(name string) subject {
	kind, rest, _ := strings.Cut(name, "/")
	group, key, _ := strings.Cut(rest, "/")
	switch {
	case kind == "group" && store.ValidName(rest):
		return subject{group: rest}
	case kind == "once" && store.ValidName(group) && store.ValidName(key):
		return subject{group: group, mark: true}
	case kind == "shard" && store.ValidName(group):
		// The processes of a set write its size and their weights, and admins pin shards.
		return subject{group: group + "-*", mark: !strings.HasPrefix(key, "pin/")}
	case kind == "node" && store.ValidName(rest):
		return subject{node: rest}
	case kind == "group", kind == "once", kind == "shard", kind == "node", kind == "service":
		return subject{hidden: true}
	}
	return subject{}
}

// mayRead: observers of a group read what is about the group. A node reads what is about
// itself. Observers of all groups read the rest.
func (v *visit) mayRead(s subject) error {
	switch {
	case s.group != "":
		return v.may(auth.Observe, s.group)
	case s.node != "" && v.own(s.node) == nil:
		return v.may(auth.Observe)
	case s.node != "" || s.hidden:
		return v.may(auth.Observe, "*")
	}
	return v.may(auth.Observe)
}

// mayWrite: admins write rules. The candidates of a group write marks.
func (v *visit) mayWrite(s subject) error {
	switch {
	case s.mark:
		return v.may(auth.Campaign, s.group)
	case s.group != "":
		return v.may(auth.Admin, s.group)
	}
	return v.may(auth.Admin, "*")
}
