package storeapi

import (
	"context"
	"strings"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store/remote/wire"
)

func (a *API) attributes(ctx context.Context, v *visit, in wire.AttributesCall) (wire.AttributesBody, error) {
	if err := (lease.Attributes{Name: in.Name}).Validate(); err != nil {
		return wire.AttributesBody{}, err
	}
	if err := v.mayRead(subjectOf(in.Name)); err != nil {
		return wire.AttributesBody{}, err
	}
	got, err := a.cfg.Store.Attributes(ctx, in.Name)
	return wire.AttributesOf(got), err
}

func (a *API) setAttributes(ctx context.Context, v *visit, in wire.AttributesBody) (wire.AttributesBody, error) {
	if err := in.Lease().Validate(); err != nil {
		return wire.AttributesBody{}, err
	}
	if err := v.mayWrite(subjectOf(in.Name)); err != nil {
		return wire.AttributesBody{}, err
	}
	got, err := a.cfg.Store.SetAttributes(ctx, in.Lease())
	return wire.AttributesOf(got), err
}

// subject is what attributes are about, as their name says. Of group and node one is set at
// most; none: they are nobody's, and hidden if they are the service's own.
type subject struct {
	group  string
	mark   bool // of what the group's leader did, not what is laid down for the group
	node   string
	hidden bool
}

func subjectOf(name string) subject {
	kind, rest, _ := strings.Cut(name, "/")
	switch kind {
	case "group":
		if lease.ValidName(rest) {
			return subject{group: rest}
		}
	case "once":
		group, key, _ := strings.Cut(rest, "/")
		if lease.ValidName(group) && lease.ValidName(key) {
			return subject{group: group, mark: true}
		}
	case "node":
		if lease.ValidName(rest) {
			return subject{node: rest}
		}
	case "service":
	default:
		return subject{}
	}
	return subject{hidden: true}
}

// mayRead: what is about a group is for those who observe it, what is about a node for
// itself and for those who observe all groups, as are the service's own.
func (v *visit) mayRead(s subject) error {
	switch {
	case s.group != "":
		return v.may(Observe, s.group)
	case s.node != "" && v.own(s.node) == nil:
		return v.may(Observe)
	case s.node != "" || s.hidden:
		return v.may(Observe, "*")
	}
	return v.may(Observe)
}

// mayWrite: what is laid down is an admin's to write; what the leaders of a group did,
// its candidates'.
func (v *visit) mayWrite(s subject) error {
	switch {
	case s.mark:
		return v.may(Campaign, s.group)
	case s.group != "":
		return v.may(Admin, s.group)
	}
	return v.may(Admin, "*")
}
