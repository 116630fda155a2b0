// Package ledgerhttp serves a ledger over HTTP.
package ledgerhttp

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tenurehq/tenure/fence/httpfence"
	"github.com/tenurehq/tenure/reference/ledger"
	"github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/ledger/state"
	"github.com/tenurehq/tenure/server/httpapi"
)

// Handler serves a ledger. Bodies are at most maxBody bytes; 0 means 4 MiB.
func Handler(l *ledger.Ledger, maxBody int64) http.Handler {
	if maxBody <= 0 {
		maxBody = 4 << 20
	}
	h := &handler{l, l.Config(), maxBody}
	mux := httpapi.NewMux()
	mux.Handle("POST", "/resources/{resource}/batch", h.answer(h.batch))
	mux.Handle("POST", "/resources/{resource}/seal", h.answer(h.raise(state.Seal)))
	mux.Handle("POST", "/resources/{resource}/advance", h.answer(h.raise(state.Advance)))
	mux.Handle("POST", "/resources/{resource}/sequences/{name}", h.answer(h.allocate))

	mux.Handle("GET", "/resources", listed(h, func(ctx context.Context, _, after string, limit int) (api.Page[api.Resource], error) {
		return l.Resources(ctx, after, limit)
	}))
	mux.Handle("GET", "/resources/{resource}", reading(h, h.resource))
	mux.Handle("GET", "/resources/{resource}/sequences/{name}", named(h, l.Sequence))
	mux.Handle("GET", "/resources/{resource}/sequences/{name}/allocations", reading(h, h.allocations))
	mux.Handle("GET", "/resources/{resource}/checkpoints/{name}", named(h, l.Checkpoint))
	mux.Handle("GET", "/resources/{resource}/records", listed(h, l.Records))
	mux.Handle("GET", "/resources/{resource}/records/{name}", h.answer(h.record))
	mux.Handle("GET", "/resources/{resource}/ticks", listed(h, l.Ticks))
	mux.Handle("GET", "/resources/{resource}/jobs", reading(h, h.jobs))
	mux.Handle("GET", "/resources/{resource}/jobs/{name}", named(h, l.Job))
	mux.Handle("GET", "/resources/{resource}/firings", reading(h, h.firings))
	mux.Handle("GET", "/shared/{deployment}/{space}/{name}", h.answer(h.shared))
	mux.Handle("PUT", "/shared/{deployment}/{space}/{name}", h.answer(h.share))
	mux.Handle("DELETE", "/shared/{deployment}/{space}/{name}", h.answer(h.share))
	mux.Handle("POST", "/accept", h.answer(h.accept))
	mux.Handle("GET", "/rejections", listed(h, func(ctx context.Context, _, after string, limit int) (api.Rejections, error) {
		return l.Rejections(ctx, after, limit)
	}))
	mux.Handle("GET", "/healthz", h.answer(h.healthz))
	mux.Handle("GET", "/metrics", promhttp.HandlerFor(l.Registry(), promhttp.HandlerOpts{}).ServeHTTP)
	if !h.cfg.Unfenced {
		return mux
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(api.HeaderFencing, "off")
		mux.ServeHTTP(w, r)
	})
}

type handler struct {
	l       *ledger.Ledger
	cfg     ledger.Config
	maxBody int64
}

// answer writes the error that a handler returns. Details of the database, such as its user
// and address, are logged and not sent.
func (h *handler) answer(f func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := f(w, r)
		if err == nil {
			return
		}
		if api.Internal(err) {
			h.cfg.Logger.Warn("request failed", "method", r.Method, "path", r.URL.Path, "error", err)
		}
		api.WriteError(w, err)
	}
}

// reading answers with the result of a read. It refuses a caller that has seen a later
// revision, as a commit does for writes.
func reading[T any](h *handler, read func(*http.Request) (T, error)) http.HandlerFunc {
	return h.answer(func(w http.ResponseWriter, r *http.Request) error {
		if err := h.verify(r); err != nil {
			return err
		}
		v, err := read(r)
		if err == nil {
			httpapi.WriteJSON(w, http.StatusOK, v)
		}
		return err
	})
}

func (h *handler) verify(r *http.Request) error {
	seen, err := api.ParseIdentity(r.Header.Get(api.HeaderIdentity))
	if now := h.l.Known(); err != nil || seen.ID == "" || seen.ID == now.ID && seen.Revision <= now.Revision {
		return err
	}
	_, err = h.l.Verify(r.Context(), seen)
	return err
}

// named answers with a named object of a resource.
func named[T any](h *handler, read func(ctx context.Context, resource, name string) (T, error)) http.HandlerFunc {
	return reading(h, func(r *http.Request) (T, error) {
		return read(r.Context(), r.PathValue("resource"), r.PathValue("name"))
	})
}

// listed answers with a page of a list of a resource.
func listed[T any](h *handler, list func(ctx context.Context, resource, after string, limit int) (T, error)) http.HandlerFunc {
	return reading(h, func(r *http.Request) (page T, err error) {
		after, limit, err := api.PageOf(r)
		if err != nil {
			return page, err
		}
		return list(r.Context(), r.PathValue("resource"), after, limit)
	})
}

func (h *handler) allocations(r *http.Request) (p api.Page[api.Allocation], err error) {
	after, limit, err := api.PageOf(r)
	if err != nil {
		return p, err
	}
	return h.l.Allocations(r.Context(), r.PathValue("resource"), r.PathValue("name"), after, limit)
}

func (h *handler) jobs(r *http.Request) (p api.Jobs, err error) {
	after, limit, err := api.PageOf(r)
	before, err2 := api.BeforeOf(r)
	if err := cmp.Or(err2, err); err != nil {
		return p, err
	}
	return h.l.Jobs(r.Context(), r.PathValue("resource"), before, after, limit)
}

func (h *handler) firings(r *http.Request) (p api.Page[api.Firing], err error) {
	after, limit, err := api.PageOf(r)
	pending, err2 := api.PendingOf(r)
	if err := cmp.Or(err2, err); err != nil {
		return p, err
	}
	return h.l.Firings(r.Context(), r.PathValue("resource"), pending, after, limit)
}

// stamp reads the headers of a write.
func (h *handler) stamp(r *http.Request) (api.Batch, error) {
	b := api.Batch{Resource: r.PathValue("resource"), Holder: holder(r)}
	var err error
	if b.Seen, err = api.ParseIdentity(r.Header.Get(api.HeaderIdentity)); err != nil {
		return b, err
	}
	if b.Stamp, err = httpfence.Parse(r.Header.Values); err != nil {
		h.l.CountRefused(err)
	}
	return b, err
}

// holder returns the name of the caller, from the header or the address.
func holder(r *http.Request) string {
	name, err := url.PathUnescape(r.Header.Get(api.HeaderHolder))
	if err != nil || name == "" {
		name, _, _ = net.SplitHostPort(r.RemoteAddr)
	}
	return name
}

func (h *handler) batch(w http.ResponseWriter, r *http.Request) error {
	b, err := h.stamp(r)
	if err != nil {
		return err
	}
	if err := httpapi.ReadJSON(w, r, h.maxBody, false, &b); err != nil {
		return err
	}
	a, err := h.l.Apply(r.Context(), b)
	return answered(w, a, err)
}

func answered(w http.ResponseWriter, a api.Answer, err error) error {
	if err == nil {
		headers(w, a)
		httpapi.WriteJSON(w, http.StatusOK, a)
	}
	return err
}

// headers sets the headers of an answer.
func headers(w http.ResponseWriter, a api.Answer) {
	w.Header().Set(api.HeaderIdentity, a.Ledger.String())
	if a.Retried {
		w.Header().Set(api.HeaderRetried, "true")
	}
}

// raise raises a mark. Only an operator on this machine may advance one: a leader must not be
// able to bypass the slip rule.
func (h *handler) raise(k state.Kind) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		if k == state.Advance {
			if err := local(r); err != nil {
				return err
			}
		}
		b, err := h.stamp(r)
		if err != nil {
			return err
		}
		if err := httpapi.ReadJSON(w, r, h.maxBody, true, &struct{}{}); err != nil {
			return err
		}
		a, err := h.l.Raise(r.Context(), k, b)
		return answered(w, a, err)
	}
}

// local refuses a caller on another machine.
func local(r *http.Request) error {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err == nil && net.ParseIP(host).IsLoopback() {
		return nil
	}
	return fmt.Errorf("%w: allowed only on the machine of the ledger", api.ErrDenied)
}

func (h *handler) accept(w http.ResponseWriter, r *http.Request) error {
	if err := local(r); err != nil {
		return err
	}
	var body api.AcceptBody
	if err := httpapi.ReadJSON(w, r, h.maxBody, true, &body); err != nil {
		return err
	}
	now, err := h.l.Accept(r.Context(), body.Replaces, holder(r))
	if err == nil {
		httpapi.WriteJSON(w, http.StatusOK, now)
	}
	return err
}

func (h *handler) resource(r *http.Request) (api.ResourceBody, error) {
	name := r.PathValue("resource")
	res, err := h.l.Resource(r.Context(), name)
	return api.ResourceBody{Resource: res, LeadersActing: h.l.LeadersActing(name), NowMS: h.l.NowMS()}, err
}

func (h *handler) record(w http.ResponseWriter, r *http.Request) error {
	rec, err := h.l.Record(r.Context(), r.PathValue("resource"), r.PathValue("name"))
	if err == nil {
		versioned(w, r, rec.Version, rec)
	}
	return err
}

// versioned answers with v, or with 304 if the caller has it.
func versioned(w http.ResponseWriter, r *http.Request, version uint64, v any) {
	w.Header().Set("ETag", api.ETag(version))
	if r.Header.Get("If-None-Match") == api.ETag(version) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	httpapi.WriteJSON(w, http.StatusOK, v)
}

func (h *handler) healthz(w http.ResponseWriter, r *http.Request) error {
	seen, err := api.ParseIdentity(r.Header.Get(api.HeaderIdentity))
	if err != nil {
		return err
	}
	now, err := h.l.Health(r.Context(), seen)
	if err != nil {
		return err
	}
	w.Header().Set(api.HeaderIdentity, now.String())
	httpapi.WriteJSON(w, http.StatusOK, map[string]any{"status": "ok", "fencing": !h.cfg.Unfenced, "ledger": now})
	return nil
}

func (h *handler) shared(w http.ResponseWriter, r *http.Request) error {
	rec, err := h.l.Shared(r.Context(), r.PathValue("deployment"), r.PathValue("space"), r.PathValue("name"))
	if err == nil {
		versioned(w, r, rec.Version, rec)
	}
	return err
}

// share replaces or deletes a shared record.
func (h *handler) share(w http.ResponseWriter, r *http.Request) (err error) {
	s := api.SharedWrite{
		Deployment: r.PathValue("deployment"), Space: r.PathValue("space"), Key: r.PathValue("name"), Delete: r.Method == http.MethodDelete,
	}
	if !s.Delete {
		if err := httpapi.ReadJSON(w, r, h.maxBody, false, &s); err != nil {
			return err
		}
	}
	if s.Seen, err = api.ParseIdentity(r.Header.Get(api.HeaderIdentity)); err != nil {
		return err
	}
	if s.Version, err = api.Precondition(r.Header); err != nil {
		return err
	}
	a, err := h.l.Share(r.Context(), s)
	if err != nil {
		return err
	}
	if !s.Delete {
		w.Header().Set("ETag", api.ETag(a.Version))
	}
	httpapi.WriteJSON(w, http.StatusOK, a)
	return nil
}
