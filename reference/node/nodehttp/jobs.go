package nodehttp

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/node"
	"github.com/tenurehq/tenure/reference/schedule"
	"github.com/tenurehq/tenure/reference/worker"
	"github.com/tenurehq/tenure/server/httpapi"
)

// write makes one write as the leader.
func (n *handler) write(r *http.Request, l *node.Leading, write ledgerapi.Write) (o ledgerapi.Outcome, err error) {
	a, err := l.Writer.Write(r.Context(), write)
	var version *ledgerapi.VersionError
	switch {
	case errors.As(err, &version):
		return o, &httpapi.Problem{
			Status: http.StatusPreconditionFailed, Code: "version_conflict", Detail: err.Error(),
			More: map[string]any{"version": version.Version, "current_version": version.Current},
		}
	case err != nil:
		return o, n.writeError(err)
	case len(a.Outcomes) != 1:
		return o, fmt.Errorf("%w: the ledger answered %d writes instead of 1", ledgerapi.ErrUnknown, len(a.Outcomes))
	}
	l.Found()
	return a.Outcomes[0], nil
}

func (n *handler) postJob(w http.ResponseWriter, r *http.Request, l *node.Leading) (any, error) {
	var j api.Job
	if err := httpapi.ReadJSON(w, r, maxBody, false, &j); err != nil {
		return nil, err
	}
	spec, err := schedule.Parse(j.Schedule)
	if err != nil {
		return nil, &ledgerapi.RequestError{Field: "schedule", Value: fmt.Sprintf("%.64s", j.Schedule), Rule: err.Error()}
	}
	// Schedules use the ledger's wall clock, the only one that all leaders share.
	res, err := n.Ledger.Resource(r.Context(), n.Config.Group)
	if err != nil {
		return nil, err
	}
	next := spec.First(res.NowMS)
	if next == 0 {
		return nil, &ledgerapi.RequestError{Field: "schedule", Value: fmt.Sprintf("%.64s", j.Schedule), Rule: "never comes"}
	}
	o, err := n.write(r, l, ledgerapi.Write{Job: &ledgerapi.JobWrite{Key: j.Key, Schedule: j.Schedule, Misfire: j.Misfire, Payload: j.Payload, NextMS: next}})
	if err != nil {
		return nil, err
	}
	if o.Job != nil {
		next = o.Job.NextMS // earlier, if a firing of the same schedule is still due
	}
	n.Scheduler.Changed()
	return api.JobAnswer{Token: l.Term.Token(), Key: j.Key, NextMS: next}, nil
}

func (n *handler) deleteJob(_ http.ResponseWriter, r *http.Request, l *node.Leading) (any, error) {
	key := cmp.Or(r.PathValue("key"), r.URL.Query().Get("key"))
	o, err := n.write(r, l, ledgerapi.Write{Job: &ledgerapi.JobWrite{Key: key, Delete: true}})
	if err != nil {
		return nil, err
	}
	n.Scheduler.Changed()
	if o.Job != nil && !o.Job.Existed {
		return nil, fmt.Errorf("%w: job %.64q", ledgerapi.ErrNotFound, key)
	}
	return api.JobAnswer{Token: l.Term.Token(), Key: key}, nil
}

func (n *handler) getJob(_ http.ResponseWriter, r *http.Request) (any, error) {
	return n.Ledger.Job(r.Context(), n.Config.Group, r.PathValue("key"))
}

func (n *handler) getJobs(_ http.ResponseWriter, r *http.Request) (any, error) {
	after, limit, err := ledgerapi.PageOf(r)
	before, err2 := ledgerapi.BeforeOf(r)
	if err := cmp.Or(err, err2); err != nil {
		return nil, err
	}
	return n.Ledger.Jobs(r.Context(), n.Config.Group, before, after, limit)
}

func (n *handler) getFirings(_ http.ResponseWriter, r *http.Request) (any, error) {
	after, limit, err := ledgerapi.PageOf(r)
	pending, err2 := ledgerapi.PendingOf(r)
	if err := cmp.Or(err, err2); err != nil {
		return nil, err
	}
	return n.Ledger.Firings(r.Context(), n.Config.Group, pending, after, limit)
}

// putFleet replaces the standing orders of the workers. It needs a leader, because workers
// accept orders only from one.
func (n *handler) putFleet(w http.ResponseWriter, r *http.Request, l *node.Leading) (any, error) {
	var f api.Fleet
	if err := httpapi.ReadJSON(w, r, maxBody, false, &f); err != nil {
		return nil, err
	}
	if f.Orders == nil {
		return nil, &ledgerapi.RequestError{Field: "orders", Rule: "must be given; an empty list ends all standing orders"}
	}
	for i, o := range f.Orders {
		if o.EveryMS < 1 {
			return nil, &ledgerapi.RequestError{Field: fmt.Sprintf("orders[%d]", i), Rule: "a standing order has a name, what to run, and every_ms"}
		}
	}
	// Orders that every worker would refuse are refused here.
	if err := worker.Validate(api.Orders{Orders: f.Orders}); err != nil {
		return nil, &ledgerapi.RequestError{Field: "orders", Rule: err.Error()}
	}
	value, err := json.Marshal(api.Fleet{Orders: f.Orders})
	if err != nil {
		return nil, err
	}
	version, err := ledgerapi.Precondition(r.Header)
	if err != nil {
		return nil, err
	}
	o, err := n.write(r, l, ledgerapi.Write{Record: &ledgerapi.RecordWrite{Key: api.FleetRecord, Value: value, Version: version}})
	if err != nil {
		return nil, err
	}
	n.Scheduler.Changed()
	f.Token = l.Term.Token()
	if o.Record != nil {
		f.Version = o.Record.Version
		w.Header().Set("ETag", ledgerapi.ETag(f.Version))
	}
	return f, nil
}

func (n *handler) getFleet(w http.ResponseWriter, r *http.Request) (any, error) {
	rec, err := n.Ledger.Record(r.Context(), n.Config.Group, api.FleetRecord)
	var f api.Fleet
	if err == nil {
		err = json.Unmarshal(rec.Value, &f)
	}
	if err != nil {
		return nil, err
	}
	f.Version, f.Token = rec.Version, rec.Token
	w.Header().Set("ETag", ledgerapi.ETag(f.Version))
	return f, nil
}
