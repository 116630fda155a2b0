package service

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"strconv"
	"strings"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/server/operator"
	"github.com/tenurehq/tenure/store"
)

func etag(n uint64) string { return `"` + strconv.FormatUint(n, 10) + `"` }

// ifMatch reads the number of an If-Match header; 0: there is none.
func ifMatch(r *http.Request) (uint64, error) {
	text := r.Header.Get("If-Match")
	if text == "" {
		return 0, nil
	}
	n, err := fence.ParseToken(strings.Trim(text, `"`))
	if err != nil {
		return 0, bad("bad_precondition", `If-Match: want one number in quotes, such as "43"`)
	}
	return uint64(n), nil
}

func (s *Service) putGroup(w http.ResponseWriter, r *http.Request, in GroupPolicy) (any, error) {
	group := groupOf(r)
	want, err := ifMatch(r)
	if err := cmp.Or(store.CheckGroup(group), err); err != nil {
		return nil, err
	}
	if err := in.Check(s.store.Caps(), s.cfg.MaxTTL); err != nil {
		return nil, bad("bad_policy", "%s", err)
	}
	created := false
	err = s.rewrite(r.Context(), group, want, func(old policy) (map[string]string, error) {
		created = !old.Declared || old.Deleted
		return in.Values(old.Attributes.Values), nil
	})
	s.audit(r.Context(), "put group", group, 0, err, "")
	if err != nil {
		return nil, err
	}
	out, err := s.getGroup(w, r)
	if created {
		out = withStatus{http.StatusCreated, out}
	}
	return out, err
}

// rewrite replaces the attributes of a group if they have the wanted version; 0: any version.
func (s *Service) rewrite(ctx context.Context, group string, want uint64, f func(policy) (map[string]string, error)) error {
	_, err := s.operations().Change(ctx, operator.Group(group), want, func(values map[string]string) error {
		next, err := f(operator.ParsePolicy(store.Attributes{Values: values}))
		if err == nil {
			clear(values)
			maps.Copy(values, next)
		}
		return err
	})
	var changed *operator.VersionError
	if errors.As(err, &changed) {
		return httpapi.Refuse(http.StatusPreconditionFailed, "version_conflict", "the policy was changed: read it again, then write it again").
			With(map[string]any{"current_version": changed.Have})
	}
	return err
}

func (s *Service) getGroup(w http.ResponseWriter, r *http.Request) (any, error) {
	group := groupOf(r)
	if err := store.CheckGroup(group); err != nil {
		return nil, err
	}
	v, err := s.engine.Read(r.Context(), group)
	if err != nil {
		return nil, err
	}
	pol, err := s.policy(r.Context(), group)
	if err != nil {
		return nil, err
	}
	if v.Version == 0 && pol.Attributes.Version == 0 {
		return nil, unknownGroup(group)
	}
	out := groupWire(v)
	out.Declared, out.Deleted, out.Policy, out.Version = pol.Declared, pol.Deleted, pol.Wire(), pol.Attributes.Version
	w.Header().Set("ETag", etag(out.Version))
	return out, nil
}

// deleteGroup marks a group as deleted: nobody can lead it until it is created again. Its
// record stays, because its tokens must not be granted twice.
func (s *Service) deleteGroup(w http.ResponseWriter, r *http.Request) (any, error) {
	group := groupOf(r)
	want, err := ifMatch(r)
	if err := cmp.Or(store.CheckGroup(group), err); err != nil {
		return nil, err
	}
	v, err := s.engine.Read(r.Context(), group)
	if err != nil {
		return nil, err
	}
	if v.State == tenure.Led {
		return nil, led(httpapi.Refuse(http.StatusConflict, "group_is_led", "%s: ask it to step down first", whoLeads(v)), v, 0)
	}
	err = s.rewrite(r.Context(), group, want, func(old policy) (map[string]string, error) {
		if !old.Declared && v.Version == 0 {
			return nil, unknownGroup(group)
		}
		return operator.Deleted(), nil
	})
	s.audit(r.Context(), "delete group", group, v.Token, err, "")
	if err != nil {
		return nil, err
	}
	return s.getGroup(w, r)
}

// nodeOf returns the node in the path.
func nodeOf(r *http.Request) (string, error) {
	node := r.PathValue("node")
	if !store.ValidName(node) {
		return "", badNode("node", node)
	}
	return node, nil
}

func (s *Service) getNode(_ http.ResponseWriter, r *http.Request) (any, error) {
	node, err := nodeOf(r)
	if err != nil {
		return nil, err
	}
	all, err := s.attributes(r.Context(), operator.Node(node))
	if err != nil {
		return nil, err
	}
	return nodeWire(node, all[0]), nil
}

func nodeWire(node string, a store.Attributes) Node {
	why, is := operator.Cordoned(a)
	return Node{NodeID: node, Cordoned: is, Reason: why}
}

func (s *Service) cordon(_ http.ResponseWriter, r *http.Request, in CordonRequest) (any, error) {
	if len(in.Reason) > operator.MaxReason {
		return nil, bad("bad_argument", "reason: at most %d bytes", operator.MaxReason)
	}
	return s.setCordon(r, "cordon ", cmp.Or(in.Reason, "by an operator"))
}

func (s *Service) uncordon(_ http.ResponseWriter, r *http.Request) (any, error) {
	return s.setCordon(r, "uncordon ", "")
}

func (s *Service) setCordon(r *http.Request, what, why string) (any, error) {
	node, err := nodeOf(r)
	if err != nil {
		return nil, err
	}
	a, err := s.operations().Cordon(r.Context(), node, why)
	s.audit(r.Context(), what+node, "", 0, err, why)
	return nodeWire(node, a), err
}
