package ledger

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tenurehq/tenure/app/httpapi"
	"github.com/tenurehq/tenure/app/ledger/api"
	"github.com/tenurehq/tenure/fence/httpfence"
)

// Handler serves the ledger over HTTP. Bodies are at most maxBody bytes; 0 means
// 4 MiB.
func (l *Ledger) Handler(maxBody int64) http.Handler {
	if maxBody <= 0 {
		maxBody = 4 << 20
	}
	h := &handler{l, maxBody}
	mux := httpapi.NewMux()
	mux.Handle("POST", "/resources/{resource}/batch", h.batch)
	mux.Handle("POST", "/resources/{resource}/seal", h.seal)
	mux.Handle("POST", "/resources/{resource}/advance", h.advance)
	mux.Handle("POST", "/resources/{resource}/sequences/{name}", h.allocate)

	mux.Handle("GET", "/resources", reading(h, h.resources))
	mux.Handle("GET", "/resources/{resource}", reading(h, h.resource))
	mux.Handle("GET", "/resources/{resource}/sequences/{name}", reading(h, h.sequence))
	mux.Handle("GET", "/resources/{resource}/sequences/{name}/allocations", reading(h, h.allocations))
	mux.Handle("GET", "/resources/{resource}/checkpoints/{name}", reading(h, h.checkpoint))
	mux.Handle("GET", "/resources/{resource}/records", reading(h, h.records))
	mux.Handle("GET", "/resources/{resource}/records/{name}", h.record)
	mux.Handle("GET", "/resources/{resource}/ticks", reading(h, h.ticks))
	mux.Handle("GET", "/resources/{resource}/jobs", reading(h, h.jobs))
	mux.Handle("GET", "/resources/{resource}/jobs/{name}", reading(h, h.job))
	mux.Handle("GET", "/resources/{resource}/firings", reading(h, h.firings))
	mux.Handle("GET", "/shared/{deployment}/{space}/{name}", h.shared)
	mux.Handle("PUT", "/shared/{deployment}/{space}/{name}", h.putShared)
	mux.Handle("DELETE", "/shared/{deployment}/{space}/{name}", h.deleteShared)
	mux.Handle("POST", "/accept", h.accept)
	mux.Handle("GET", "/rejections", reading(h, h.rejections))
	mux.Handle("GET", "/healthz", h.healthz)
	mux.Handle("GET", "/metrics", promhttp.HandlerFor(l.metrics.registry, promhttp.HandlerOpts{}).ServeHTTP)
	if !l.cfg.Unfenced {
		return mux
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(api.HeaderFencing, "off")
		mux.ServeHTTP(w, r)
	})
}

type handler struct {
	l       *Ledger
	maxBody int64
}

// fail answers with an error. What the database says about itself, such as its user and
// address, is logged and not sent.
func (h *handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	if api.Internal(err) {
		h.l.cfg.Logger.Warn("request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	api.WriteError(w, err)
}

// stamped reads what every write has: the stamp, who writes, and the body.
func (h *handler) stamped(w http.ResponseWriter, r *http.Request, emptyAllowed bool, body any) (api.Batch, error) {
	b, err := h.stamp(r)
	if err != nil {
		return b, err
	}
	return b, httpapi.ReadJSON(w, r, h.maxBody, emptyAllowed, body)
}

func (h *handler) stamp(r *http.Request) (api.Batch, error) {
	b := api.Batch{Resource: r.PathValue("resource")}
	var err error
	b.Holder = holder(r)
	if b.Seen, err = api.ParseIdentity(r.Header.Get(api.HeaderIdentity)); err != nil {
		return b, err
	}
	if b.Stamp, err = httpfence.Parse(r.Header.Values); err != nil {
		h.l.metrics.refused(err)
	}
	return b, err
}

// holder is who asks, by their own word or by their address.
func holder(r *http.Request) string {
	name, err := url.PathUnescape(r.Header.Get(api.HeaderHolder))
	if err != nil || name == "" {
		name, _, _ = net.SplitHostPort(r.RemoteAddr)
	}
	return name
}

func (h *handler) batch(w http.ResponseWriter, r *http.Request) {
	var body api.BatchBody
	b, err := h.stamped(w, r, false, &body)
	if err != nil {
		h.fail(w, r, err)
		return
	}
	b.Digest, b.Writes = body.Digest, body.Writes
	a, err := h.l.Apply(r.Context(), b)
	if err != nil {
		h.fail(w, r, err)
		return
	}
	headers(w, a)
	httpapi.WriteJSON(w, http.StatusOK, a)
}

// headers sets what an answer has besides its body.
func headers(w http.ResponseWriter, a api.Answer) {
	w.Header().Set(api.HeaderIdentity, a.Ledger.String())
	if a.Retried {
		w.Header().Set(api.HeaderRetried, "true")
	}
}

func (h *handler) seal(w http.ResponseWriter, r *http.Request) { h.raise(w, r, seal) }

// advance is for an operator on the machine itself: a leader must not be able to
// get past the slip rule by asking.
func (h *handler) advance(w http.ResponseWriter, r *http.Request) {
	if !h.local(w, r) {
		return
	}
	h.raise(w, r, advance)
}

// local answers a caller that is not on this machine.
func (h *handler) local(w http.ResponseWriter, r *http.Request) bool {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err == nil && net.ParseIP(host).IsLoopback() {
		return true
	}
	h.fail(w, r, fmt.Errorf("%w: only an operator on the ledger's own machine may do this", api.ErrDenied))
	return false
}

func (h *handler) accept(w http.ResponseWriter, r *http.Request) {
	var body api.AcceptBody
	if !h.local(w, r) {
		return
	}
	err := httpapi.ReadJSON(w, r, h.maxBody, true, &body)
	var now api.Identity
	if err == nil {
		now, err = h.l.Accept(r.Context(), body.Replaces, holder(r))
	}
	if err != nil {
		h.fail(w, r, err)
		return
	}
	httpapi.WriteJSON(w, http.StatusOK, now)
}

func (h *handler) raise(w http.ResponseWriter, r *http.Request, k kind) {
	b, err := h.stamped(w, r, true, &struct{}{})
	var a api.Answer
	if err == nil {
		a, err = h.l.raise(r.Context(), k, b)
	}
	if err != nil {
		h.fail(w, r, err)
		return
	}
	headers(w, a)
	httpapi.WriteJSON(w, http.StatusOK, a)
}

// reading answers with what a read returns.
func reading[T any](h *handler, read func(*http.Request) (T, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var v T
		err := h.verify(r)
		if err == nil {
			v, err = read(r)
		}
		if err != nil {
			h.fail(w, r, err)
			return
		}
		httpapi.WriteJSON(w, http.StatusOK, v)
	}
}

// verify refuses a read of a caller that has seen more than there is. The commit does so
// for writes.
func (h *handler) verify(r *http.Request) error {
	seen, err := api.ParseIdentity(r.Header.Get(api.HeaderIdentity))
	if now := h.l.known.Load(); err != nil || seen.ID == "" || seen.ID == now.ID && seen.Revision <= now.Revision {
		return err
	}
	_, err = h.l.verify(r.Context(), seen)
	return err
}

// paging reads ?after= and ?limit=.
func paging(r *http.Request) (after string, limit int, err error) {
	q := r.URL.Query()
	if s := q.Get("limit"); s != "" {
		if limit, err = strconv.Atoi(s); err != nil || limit < 1 || limit > api.MaxPage {
			return "", 0, &api.RequestError{Field: "limit", Value: s[:min(len(s), 32)], Rule: "from 1 to " + strconv.Itoa(api.MaxPage)}
		}
	}
	return q.Get("after"), limit, nil
}

func (h *handler) resources(r *http.Request) (p api.Page[api.Resource], err error) {
	after, limit, err := paging(r)
	if err != nil {
		return p, err
	}
	return h.l.Resources(r.Context(), after, limit)
}

func (h *handler) resource(r *http.Request) (api.ResourceBody, error) {
	name := r.PathValue("resource")
	res, err := h.l.Resource(r.Context(), name)
	return api.ResourceBody{Resource: res, LeadersActing: h.l.LeadersActing(name), NowMS: h.l.nowMS()}, err
}

func (h *handler) sequence(r *http.Request) (api.Sequence, error) {
	return h.l.Sequence(r.Context(), r.PathValue("resource"), r.PathValue("name"))
}

func (h *handler) allocations(r *http.Request) (p api.Page[api.Allocation], err error) {
	after, limit, err := paging(r)
	if err != nil {
		return p, err
	}
	return h.l.Allocations(r.Context(), r.PathValue("resource"), r.PathValue("name"), after, limit)
}

func (h *handler) checkpoint(r *http.Request) (api.Checkpoint, error) {
	return h.l.Checkpoint(r.Context(), r.PathValue("resource"), r.PathValue("name"))
}

func (h *handler) records(r *http.Request) (p api.Page[api.Record], err error) {
	after, limit, err := paging(r)
	if err != nil {
		return p, err
	}
	return h.l.Records(r.Context(), r.PathValue("resource"), after, limit)
}

func (h *handler) record(w http.ResponseWriter, r *http.Request) {
	rec, err := h.l.Record(r.Context(), r.PathValue("resource"), r.PathValue("name"))
	if err != nil {
		h.fail(w, r, err)
		return
	}
	versioned(w, r, rec.Version, rec)
}

// versioned answers with v, or that the caller has it.
func versioned(w http.ResponseWriter, r *http.Request, version uint64, v any) {
	etag := strconv.Quote(strconv.FormatUint(version, 10))
	w.Header().Set("ETag", etag)
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	httpapi.WriteJSON(w, http.StatusOK, v)
}

func (h *handler) ticks(r *http.Request) (p api.Page[api.Tick], err error) {
	after, limit, err := paging(r)
	if err != nil {
		return p, err
	}
	return h.l.Ticks(r.Context(), r.PathValue("resource"), after, limit)
}

func (h *handler) rejections(r *http.Request) (p api.Rejections, err error) {
	after, limit, err := paging(r)
	if err != nil {
		return p, err
	}
	return h.l.Rejections(r.Context(), after, limit)
}

func (h *handler) healthz(w http.ResponseWriter, r *http.Request) {
	seen, err := api.ParseIdentity(r.Header.Get(api.HeaderIdentity))
	var now api.Identity
	if err == nil {
		now, err = h.l.Health(r.Context(), seen)
	}
	if err != nil {
		h.fail(w, r, err)
		return
	}
	w.Header().Set(api.HeaderIdentity, now.String())
	httpapi.WriteJSON(w, http.StatusOK, map[string]any{"status": "ok", "fencing": !h.l.cfg.Unfenced, "ledger": now})
}
