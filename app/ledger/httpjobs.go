package ledger

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/tenurehq/tenure/app/httpapi"
	"github.com/tenurehq/tenure/app/ledger/api"
)

func (h *handler) jobs(r *http.Request) (p api.Jobs, err error) {
	after, limit, err := paging(r)
	if err != nil {
		return p, err
	}
	var beforeMS int64
	if s := r.URL.Query().Get("before_ms"); s != "" {
		if beforeMS, err = strconv.ParseInt(s, 10, 64); err != nil || beforeMS < 1 {
			return p, &api.RequestError{Field: "before_ms", Value: s[:min(len(s), 32)], Rule: "milliseconds since 1970, from 1 to 2^53-1"}
		}
	}
	return h.l.Jobs(r.Context(), r.PathValue("resource"), beforeMS, after, limit)
}

func (h *handler) job(r *http.Request) (api.Job, error) {
	return h.l.Job(r.Context(), r.PathValue("resource"), r.PathValue("name"))
}

func (h *handler) firings(r *http.Request) (p api.Page[api.Firing], err error) {
	after, limit, err := paging(r)
	if err != nil {
		return p, err
	}
	pending := false
	if s := r.URL.Query().Get("pending"); s != "" {
		if pending, err = strconv.ParseBool(s); err != nil {
			return p, &api.RequestError{Field: "pending", Value: s[:min(len(s), 32)], Rule: "true or false"}
		}
	}
	return h.l.Firings(r.Context(), r.PathValue("resource"), pending, after, limit)
}

func (h *handler) shared(w http.ResponseWriter, r *http.Request) {
	rec, err := h.l.Shared(r.Context(), r.PathValue("deployment"), r.PathValue("space"), r.PathValue("name"))
	if err != nil {
		h.fail(w, r, err)
		return
	}
	versioned(w, r, rec.Version, rec)
}

func (h *handler) putShared(w http.ResponseWriter, r *http.Request) {
	var body api.SharedBody
	if err := httpapi.ReadJSON(w, r, h.maxBody, false, &body); err != nil {
		h.fail(w, r, err)
		return
	}
	h.share(w, r, api.SharedWrite{Value: body.Value})
}

func (h *handler) deleteShared(w http.ResponseWriter, r *http.Request) {
	h.share(w, r, api.SharedWrite{Delete: true})
}

func (h *handler) share(w http.ResponseWriter, r *http.Request, s api.SharedWrite) {
	s.Deployment, s.Space, s.Key = r.PathValue("deployment"), r.PathValue("space"), r.PathValue("name")
	var err error
	if s.Seen, err = api.ParseIdentity(r.Header.Get(api.HeaderIdentity)); err == nil {
		s.Version, err = precondition(r.Header)
	}
	if err != nil {
		h.fail(w, r, err)
		return
	}
	a, err := h.l.share(r.Context(), s)
	if err != nil {
		h.fail(w, r, err)
		return
	}
	if !s.Delete {
		w.Header().Set("ETag", strconv.Quote(strconv.FormatUint(a.Version, 10)))
	}
	httpapi.WriteJSON(w, http.StatusOK, a)
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
