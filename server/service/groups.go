package service

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"strings"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/httpapi"
	"github.com/tenurehq/tenure/server/operator"
)

// ifMatch reads the number of an If-Match header; 0: there is none.
func ifMatch(r *http.Request) (uint64, error) {
	text := r.Header.Get("If-Match")
	if text == "" {
		return 0, nil
	}
	n, err := fence.ParseToken(strings.Trim(text, `"`))
	if err != nil {
		return 0, bad("bad_precondition", `If-Match: one number in quotes, such as "43"`)
	}
	return uint64(n), nil
}

func versionProblem(have uint64) *httpapi.Problem {
	return &httpapi.Problem{
		Status: http.StatusPreconditionFailed, Code: "version_conflict",
		Detail: "the policy was changed meanwhile: read it again, then write it again",
		More:   map[string]any{"current_version": have},
	}
}

func (s *Service) putGroup(w http.ResponseWriter, r *http.Request) error {
	group := groupOf(r)
	if err := lease.CheckGroup(group); err != nil {
		return err
	}
	var in GroupPolicy
	if err := s.body(w, r, true, &in); err != nil {
		return err
	}
	if err := s.checkPolicy(in); err != nil {
		return err
	}
	want, err := ifMatch(r)
	if err != nil {
		return err
	}
	created := false
	err = s.rewrite(r.Context(), group, want, func(old policy) (map[string]string, error) {
		created = !old.Declared || old.Deleted
		return in.Values(old.Attributes.Values), nil
	})
	s.audit(r.Context(), "put group", group, 0, err, "")
	if err != nil {
		return err
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	return s.showGroup(w, r, status)
}

// rewrite replaces a group's attributes, from the version that is wanted or, with 0, from
// whichever there is.
func (s *Service) rewrite(ctx context.Context, group string, want uint64, f func(policy) (map[string]string, error)) error {
	_, err := s.hand().Change(ctx, operator.Group(group), want, func(values map[string]string) error {
		next, err := f(operator.ParsePolicy(lease.Attributes{Values: values}))
		if err == nil {
			clear(values)
			maps.Copy(values, next)
		}
		return err
	})
	var changed *operator.VersionError
	if errors.As(err, &changed) {
		return versionProblem(changed.Have)
	}
	return err
}

func (s *Service) getGroup(w http.ResponseWriter, r *http.Request) error {
	return s.showGroup(w, r, http.StatusOK)
}

func (s *Service) showGroup(w http.ResponseWriter, r *http.Request, status int) error {
	group := groupOf(r)
	if err := lease.CheckGroup(group); err != nil {
		return err
	}
	a, err := s.reader.Read(r.Context(), group)
	if err != nil {
		return err
	}
	pol, err := s.policy(r.Context(), group)
	if err != nil {
		return err
	}
	if a.Version == 0 && pol.Attributes.Version == 0 {
		return unknownGroup(group, "it was never created and never led")
	}
	out := groupWire(a.View)
	out.Declared, out.Deleted, out.Policy, out.Version = pol.Declared, pol.Deleted, pol.Wire(), pol.Attributes.Version
	w.Header().Set("ETag", etag(out.Version))
	httpapi.WriteJSON(w, status, out)
	return nil
}

// deleteGroup marks a group: nobody can lead it until it is created again. Its record
// stays, and with it the token, which must not be given twice.
func (s *Service) deleteGroup(w http.ResponseWriter, r *http.Request) error {
	group := groupOf(r)
	if err := lease.CheckGroup(group); err != nil {
		return err
	}
	want, err := ifMatch(r)
	if err != nil {
		return err
	}
	a, err := s.reader.Read(r.Context(), group)
	if err != nil {
		return err
	}
	if a.State == tenure.Led {
		return led(&httpapi.Problem{
			Status: http.StatusConflict, Code: "group_is_led",
			Detail: whoLeads(a.View) + ": ask it to step down first",
		}, a.View, 0)
	}
	err = s.rewrite(r.Context(), group, want, func(old policy) (map[string]string, error) {
		if !old.Declared && a.Version == 0 {
			return nil, unknownGroup(group, "it was never created and never led")
		}
		return operator.Deleted(), nil
	})
	s.audit(r.Context(), "delete group", group, a.Token, err, "")
	if err != nil {
		return err
	}
	if err := s.created.Remove(r.Context(), group); err != nil {
		s.cfg.Log.Warn("a deleted group could not be taken out of the list of created ones; it is not shown all the same", "group", group, "err", err)
	}
	return s.showGroup(w, r, http.StatusOK)
}

func (s *Service) getNode(w http.ResponseWriter, r *http.Request) error {
	node := r.PathValue("node")
	if !lease.ValidName(node) {
		return bad("bad_argument", "%q is no name of a node", clip(node))
	}
	laid, err := s.laid(r.Context(), operator.Node(node))
	if err != nil {
		return err
	}
	writeNode(w, node, laid[0])
	return nil
}

func writeNode(w http.ResponseWriter, node string, a lease.Attributes) {
	why, is := operator.Cordoned(a)
	httpapi.WriteJSON(w, http.StatusOK, Node{NodeID: node, Cordoned: is, Reason: why})
}

func (s *Service) cordon(w http.ResponseWriter, r *http.Request) error {
	var in CordonRequest
	if err := s.body(w, r, true, &in); err != nil {
		return err
	}
	def(&in.Reason, "by an operator")
	if len(in.Reason) > operator.MaxReason {
		return bad("bad_argument", "reason: at most %d bytes", operator.MaxReason)
	}
	return s.setCordon(w, r, in.Reason)
}

func (s *Service) uncordon(w http.ResponseWriter, r *http.Request) error {
	return s.setCordon(w, r, "")
}

func (s *Service) setCordon(w http.ResponseWriter, r *http.Request, why string) error {
	node := r.PathValue("node")
	if !lease.ValidName(node) {
		return bad("bad_argument", "%q is no name of a node", clip(node))
	}
	a, err := s.hand().Cordon(r.Context(), node, why)
	what := "cordon"
	if why == "" {
		what = "uncordon"
	}
	s.audit(r.Context(), what+" "+node, "", 0, err, why)
	if err != nil {
		return err
	}
	writeNode(w, node, a)
	return nil
}
