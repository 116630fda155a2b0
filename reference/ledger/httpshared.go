package ledger

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/server/httpapi"
)

func (h *handler) shared(w http.ResponseWriter, r *http.Request) error {
	rec, err := h.l.Shared(r.Context(), r.PathValue("deployment"), r.PathValue("space"), r.PathValue("name"))
	if err == nil {
		versioned(w, r, rec.Version, rec)
	}
	return err
}

func (h *handler) putShared(w http.ResponseWriter, r *http.Request) error {
	var body api.SharedBody
	if err := httpapi.ReadJSON(w, r, h.maxBody, false, &body); err != nil {
		return err
	}
	return h.share(w, r, api.SharedWrite{Value: body.Value})
}

func (h *handler) deleteShared(w http.ResponseWriter, r *http.Request) error {
	return h.share(w, r, api.SharedWrite{Delete: true})
}

func (h *handler) share(w http.ResponseWriter, r *http.Request, s api.SharedWrite) (err error) {
	s.Deployment, s.Space, s.Key = r.PathValue("deployment"), r.PathValue("space"), r.PathValue("name")
	if s.Seen, err = api.ParseIdentity(r.Header.Get(api.HeaderIdentity)); err != nil {
		return err
	}
	if s.Version, err = precondition(r.Header); err != nil {
		return err
	}
	a, err := h.l.share(r.Context(), s)
	if err != nil {
		return err
	}
	if !s.Delete {
		w.Header().Set("ETag", etag(a.Version))
	}
	httpapi.WriteJSON(w, http.StatusOK, a)
	return nil
}

// precondition reads the version that the record must have. What it cannot read it
// refuses: a guard that is ignored is worse than none.
func precondition(h http.Header) (version *uint64, err error) {
	match, none := h.Values("If-Match"), h.Values("If-None-Match")
	switch {
	case len(match) == 0 && len(none) == 0:
		return nil, nil
	case len(match)+len(none) > 1:
		return nil, &api.RequestError{Field: "If-Match", Rule: "one of If-Match and If-None-Match, once"}
	case len(none) == 1:
		if none[0] != "*" {
			return nil, &api.RequestError{Field: "If-None-Match", Value: none[0][:min(len(none[0]), 32)], Rule: `only * for a write: the record must not exist`}
		}
		return new(uint64), nil
	}
	text, quoted := strings.CutPrefix(match[0], `"`)
	text, closed := strings.CutSuffix(text, `"`)
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || !quoted || !closed || n == 0 {
		return nil, &api.RequestError{Field: "If-Match", Value: match[0][:min(len(match[0]), 32)], Rule: `one version in quotes, as the ETag has it: "7"`}
	}
	return &n, nil
}
