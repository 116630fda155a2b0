package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/scheduler"
	"github.com/tenurehq/tenure/reference/worker"
	"github.com/tenurehq/tenure/server/httpapi"
)

// lead makes a write as the leader and reports whether it was made; otherwise the call
// is answered.
func (n *Node) lead(w http.ResponseWriter, r *http.Request, l *leading, write ledgerapi.Write) (ledgerapi.Answer, bool) {
	a, err := l.pen.Write(r.Context(), write)
	var version *ledgerapi.VersionError
	if errors.As(err, &version) {
		n.fail(w, &httpapi.Problem{
			Status: http.StatusPreconditionFailed, Code: "version_conflict", Detail: err.Error(),
			More: map[string]any{"version": version.Version, "current_version": version.Current},
		})
		return a, false
	}
	if err != nil {
		n.failWrite(w, r, err)
		return a, false
	}
	l.found()
	return a, true
}

func (n *Node) postJob(w http.ResponseWriter, r *http.Request) {
	l := n.leading.Load()
	if l == nil {
		n.turnAway(w, r)
		return
	}
	var j api.Job
	if err := httpapi.ReadJSON(w, r, maxBody, false, &j); err != nil {
		n.fail(w, err)
		return
	}
	spec, err := scheduler.ParseSpec(j.Schedule)
	if err != nil {
		n.fail(w, &ledgerapi.RequestError{Field: "schedule", Value: fmt.Sprintf("%.64s", j.Schedule), Rule: err.Error()})
		return
	}
	now, err := n.ledgerNow(r)
	if err != nil {
		n.fail(w, err)
		return
	}
	next := spec.First(now)
	if next == 0 {
		n.fail(w, &ledgerapi.RequestError{Field: "schedule", Value: fmt.Sprintf("%.64s", j.Schedule), Rule: "never comes"})
		return
	}
	if a, ok := n.lead(w, r, l, ledgerapi.Write{Job: &ledgerapi.JobWrite{Key: j.Key, Schedule: j.Schedule, Misfire: j.Misfire, Payload: j.Payload, NextMS: next}}); ok {
		if len(a.Outcomes) == 1 && a.Outcomes[0].Job != nil {
			next = a.Outcomes[0].Job.NextMS // an instant that is due stays due
		}
		n.scheduler.Changed()
		httpapi.WriteJSON(w, http.StatusOK, api.JobAnswer{Token: l.term.Token(), Key: j.Key, NextMS: next})
	}
}

// ledgerNow is the ledger's wall clock, the only one that schedules go by.
func (n *Node) ledgerNow(r *http.Request) (int64, error) {
	res, err := n.ledger.Resource(r.Context(), n.cfg.Group)
	return res.NowMS, err
}

func (n *Node) deleteJob(w http.ResponseWriter, r *http.Request) {
	l := n.leading.Load()
	if l == nil {
		n.turnAway(w, r)
		return
	}
	key := r.PathValue("key")
	if key == "" {
		key = r.URL.Query().Get("key")
	}
	if a, ok := n.lead(w, r, l, ledgerapi.Write{Job: &ledgerapi.JobWrite{Key: key, Delete: true}}); ok {
		n.scheduler.Changed()
		if len(a.Outcomes) == 1 && a.Outcomes[0].Job != nil && !a.Outcomes[0].Job.Existed {
			n.fail(w, fmt.Errorf("%w: job %.64q", ledgerapi.ErrNotFound, key))
			return
		}
		httpapi.WriteJSON(w, http.StatusOK, api.JobAnswer{Token: l.term.Token(), Key: key})
	}
}

// reply answers with what the ledger said.
func (n *Node) reply(w http.ResponseWriter, v any, err error) {
	if err != nil {
		n.fail(w, err)
		return
	}
	httpapi.WriteJSON(w, http.StatusOK, v)
}

func (n *Node) getJob(w http.ResponseWriter, r *http.Request) {
	j, err := n.ledger.Job(r.Context(), n.cfg.Group, r.PathValue("key"))
	n.reply(w, j, err)
}

// page reads what selects a part of a list.
func page(r *http.Request) (after string, limit int, err error) {
	q := r.URL.Query()
	if text := q.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > ledgerapi.MaxPage {
			return "", 0, &ledgerapi.RequestError{Field: "limit", Value: fmt.Sprintf("%.32s", text), Rule: fmt.Sprintf("from 1 to %d", ledgerapi.MaxPage)}
		}
	}
	return q.Get("after"), limit, nil
}

func (n *Node) getJobs(w http.ResponseWriter, r *http.Request) {
	after, limit, err := page(r)
	var before int64
	if text := r.URL.Query().Get("before_ms"); text != "" && err == nil {
		if before, err = strconv.ParseInt(text, 10, 64); err != nil {
			err = &ledgerapi.RequestError{Field: "before_ms", Value: fmt.Sprintf("%.32s", text), Rule: "milliseconds since 1970"}
		}
	}
	if err != nil {
		n.fail(w, err)
		return
	}
	jobs, err := n.ledger.Jobs(r.Context(), n.cfg.Group, before, after, limit)
	n.reply(w, jobs, err)
}

func (n *Node) getFirings(w http.ResponseWriter, r *http.Request) {
	after, limit, err := page(r)
	if err != nil {
		n.fail(w, err)
		return
	}
	firings, err := n.ledger.Firings(r.Context(), n.cfg.Group, r.URL.Query().Get("pending") == "true", after, limit)
	n.reply(w, firings, err)
}

// putFleet replaces the standing orders of the workers: what needs a leader, because
// the workers obey one.
func (n *Node) putFleet(w http.ResponseWriter, r *http.Request) {
	l := n.leading.Load()
	if l == nil {
		n.turnAway(w, r)
		return
	}
	var f api.Fleet
	if err := httpapi.ReadJSON(w, r, maxBody, false, &f); err != nil {
		n.fail(w, err)
		return
	}
	if f.Orders == nil {
		n.fail(w, &ledgerapi.RequestError{Field: "orders", Rule: "must be given; an empty list ends all standing orders"})
		return
	}
	for i, o := range f.Orders {
		if o.EveryMS < 1 {
			n.fail(w, &ledgerapi.RequestError{Field: fmt.Sprintf("orders[%d]", i), Rule: "a standing order has a name, what to run, and every_ms"})
			return
		}
	}
	// What every worker would refuse is refused here.
	if err := (worker.Orders{Orders: f.Orders}).Validate(); err != nil {
		n.fail(w, &ledgerapi.RequestError{Field: "orders", Rule: err.Error()})
		return
	}
	value, err := json.Marshal(api.Fleet{Orders: f.Orders})
	if err != nil {
		n.fail(w, err)
		return
	}
	version, err := wanted(r)
	if err != nil {
		n.fail(w, err)
		return
	}
	if a, ok := n.lead(w, r, l, ledgerapi.Write{Record: &ledgerapi.RecordWrite{Key: api.FleetRecord, Value: value, Version: version}}); ok {
		n.scheduler.Changed()
		f.Token = l.term.Token()
		if len(a.Outcomes) == 1 && a.Outcomes[0].Record != nil {
			f.Version = a.Outcomes[0].Record.Version
			w.Header().Set("ETag", etag(f.Version))
		}
		httpapi.WriteJSON(w, http.StatusOK, f)
	}
}

func (n *Node) getFleet(w http.ResponseWriter, r *http.Request) {
	rec, err := n.ledger.Record(r.Context(), n.cfg.Group, api.FleetRecord)
	var f api.Fleet
	if err == nil {
		err = json.Unmarshal(rec.Value, &f)
	}
	if err != nil {
		n.fail(w, err)
		return
	}
	f.Version, f.Token = rec.Version, rec.Token
	w.Header().Set("ETag", etag(f.Version))
	httpapi.WriteJSON(w, http.StatusOK, f)
}
