package supervise

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
)

// once is the record of --once in the store. Every leader writes it when it begins, from
// the version that it read. So an earlier leader that returns with a result finds another
// version and writes nothing.
type once struct {
	store store.Store
	name  string
	keep  time.Duration // how long the record is kept; 0: for ever
	call  time.Duration
	seen  store.Attributes
}

const (
	onceRunning = "running"
	onceDone    = "done"

	// OncePrefix begins the names of all records of --once.
	OncePrefix = "once/"
)

// OnceName is the name of the record of a key.
func OnceName(group, key string) string { return OncePrefix + group + "/" + key }

// OnceRecord says which leader ran a command under a key.
type OnceRecord struct {
	Group string    `json:"group"`
	Key   string    `json:"key"`
	State string    `json:"state"` // running or done
	Node  string    `json:"node_id"`
	Token string    `json:"token"`
	At    time.Time `json:"at"`             // begin of the run, or its end if it is done
	Until time.Time `json:"until,omitzero"` // when the record expires; zero: never
}

// ParseOnce decodes a record. A record that was removed or has expired is not valid.
func ParseOnce(a store.Attributes, now time.Time) (r OnceRecord, valid bool) {
	group, key, _ := strings.Cut(strings.TrimPrefix(a.Name, OncePrefix), "/")
	v := a.Values
	at, _ := time.Parse(time.RFC3339, v["at"])
	until, _ := time.Parse(time.RFC3339, v["until"])
	r = OnceRecord{Group: group, Key: key, State: v["state"], Node: v["node"], Token: v["token"], At: at, Until: until}
	return r, r.State != "" && (until.IsZero() || now.Before(until))
}

func (o *once) read(ctx context.Context) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.call)
	defer cancel()
	a, err := o.store.Attributes(ctx, o.name)
	if err != nil {
		return false, err
	}
	o.seen = a
	r, valid := ParseOnce(a, time.Now())
	return valid && r.State == onceDone, nil
}

// begin records the start. Done: there is nothing to run. begin and finish wait for a call
// that is in progress when ctx ends, because it may succeed.
func (o *once) begin(ctx context.Context, term *tenure.Term) (done bool, err error) {
	err = o.retry(ctx, term, func(ctx context.Context) (bool, error) {
		if done, err = o.read(ctx); err != nil || done {
			return done, err
		}
		return o.write(ctx, term, onceRunning)
	})
	return done, err
}

// finish records the success.
func (o *once) finish(ctx context.Context, term *tenure.Term) error {
	mine := maps.Clone(o.seen.Values)
	return o.retry(ctx, term, func(ctx context.Context) (bool, error) {
		ok, err := o.write(ctx, term, onceDone)
		if err == nil {
			return ok, nil
		}
		// Either another leader wrote the record, or the answer to our own write was lost.
		done, readErr := o.read(ctx)
		switch {
		case readErr != nil:
			return false, readErr
		case o.seen.Values["token"] != mine["token"]:
			return true, fmt.Errorf("%s has started it again with token %s", o.seen.Values["node"], o.seen.Values["token"])
		case done:
			return true, nil
		default:
			return false, err
		}
	})
}

// retry tries until the outcome is settled, the error is permanent, or the term has ended.
func (o *once) retry(ctx context.Context, term *tenure.Term, try func(context.Context) (settled bool, err error)) error {
	const pause = 100 * time.Millisecond
	for {
		settled, err := try(context.WithoutCancel(ctx))
		err = plain(err)
		if settled || store.Permanent(err) {
			return err
		}
		if over := term.Check(); over != nil {
			return errors.Join(err, over)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		}
	}
}

func (o *once) write(ctx context.Context, term *tenure.Term, state string) (bool, error) {
	if err := term.Check(); err != nil {
		return true, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.call)
	defer cancel()
	next := o.seen
	next.Values = map[string]string{
		"state": state, "node": term.Candidate().ID, "token": term.Token().String(), "at": time.Now().UTC().Format(time.RFC3339),
	}
	if o.keep > 0 {
		next.Values["until"] = time.Now().Add(o.keep).UTC().Format(time.RFC3339)
	}
	a, err := o.store.SetAttributes(ctx, next)
	if err != nil {
		return false, err
	}
	o.seen = a
	return true, nil
}

// removeExpired removes expired records of the group, at most one page. If that fails, a
// later run does it.
func (o *once) removeExpired(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, o.call)
	defer cancel()
	all, _ := o.store.ListAttributes(ctx, o.name[:strings.LastIndexByte(o.name, '/')+1], store.Page{})
	for _, a := range all {
		if _, valid := ParseOnce(a, time.Now()); !valid && len(a.Values) > 0 && a.Name != o.name {
			a.Values = nil
			_, _ = o.store.SetAttributes(ctx, a)
		}
	}
}
