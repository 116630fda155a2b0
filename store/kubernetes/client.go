package kubernetes

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
)

const (
	// refusedFor is how long a verb that was allowed before must be refused until it counts as
	// denied. An API server that starts refuses callers before it has loaded its roles.
	refusedFor = 30 * time.Second
	// maxCalls bounds the concurrent calls. client-go keeps as many connections.
	maxCalls = 25
)

// do sends a request. It retries only if the API server was too busy: client-go would also
// retry a request that may have taken effect.
func (d *driver) do(ctx context.Context, verb string, into runtime.Object, req *rest.Request) error {
	for d.of(req); ; {
		select {
		case d.slots <- struct{}{}:
		case <-ctx.Done():
			return d.explain(verb, context.Cause(ctx))
		case <-d.ctx.Done():
			return kv.ErrClosed
		}
		r := req.Do(ctx)
		<-d.slots
		err := r.Error()
		if err == nil && into != nil {
			err = r.Into(into)
		}
		if !apierrors.IsTooManyRequests(err) {
			return d.explain(verb, err)
		}
		wait, _ := apierrors.SuggestsClientDelay(err)
		if kv.Pause(ctx, max(time.Duration(wait)*time.Second, time.Second/10)); ctx.Err() != nil {
			return d.explain(verb, err)
		}
	}
}

func (d *driver) of(r *rest.Request) *rest.Request {
	return r.Namespace(d.cfg.Namespace).Resource("leases").MaxRetries(0)
}

// explain adds the meaning to an error. Answers about one Lease (conflict, not found, exists)
// are returned unchanged.
func (d *driver) explain(verb string, err error) error {
	refused := apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err)
	d.mu.Lock()
	since, before := d.refused[verb]
	switch {
	case !refused && apierrors.ReasonForError(err) != meta.StatusReasonUnknown || err == nil:
		d.refused[verb] = time.Time{} // it is allowed
	case refused && before && since.IsZero():
		since = time.Now()
		d.refused[verb] = since
	}
	temporary := before && time.Since(since) < refusedFor
	d.mu.Unlock()
	switch what := fmt.Sprintf("kubernetes: %s leases in namespace %q at %s", verb, d.cfg.Namespace, d.cfg.REST.Host); {
	case err == nil, apierrors.IsConflict(err), apierrors.IsNotFound(err), apierrors.IsAlreadyExists(err), apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return err
	case refused && temporary:
		return fmt.Errorf("%s: refused, although it was allowed before: %w", what, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: %w: the API server does not accept the token or certificate, or it has expired", what, store.ErrUnauthenticated)
	case refused:
		return fmt.Errorf("%s: %w: the Role needs the verb %q on leases of coordination.k8s.io: %s", what, store.ErrDenied, verb, err.Error())
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// check finds out which rights are missing and whether the namespace exists. It changes nothing.
func (d *driver) check(ctx context.Context) error {
	ctx, cancel := kv.Bounded(ctx)
	defer cancel()
	o := newObject(kv.Write{})
	o.Metadata.Name = d.cfg.Name + ".check." + strings.ToLower(rand.Text())
	dry := func(r *rest.Request) *rest.Request { return r.Param("dryRun", meta.DryRunAll) }
	var denied []error
	for _, try := range []struct {
		verb string
		req  *rest.Request
	}{
		{"get", d.rest.Get().Name(o.Metadata.Name)},
		{"list", d.rest.Get().Param("limit", "1")},
		{"create", dry(post(d.rest, o))},
		{"patch", dry(d.rest.Patch(types.MergePatchType)).Name(o.Metadata.Name).Body([]byte("{}"))},
		{"delete", dry(d.rest.Delete()).Name(o.Metadata.Name)},
		// The API server checks the right to watch before the parameters, which are wrong.
		{"watch", d.rest.Get().Param("watch", "true").Param("timeoutSeconds", "wrong")},
	} {
		err := d.do(ctx, try.verb, nil, try.req)
		switch {
		case errors.Is(err, store.ErrDenied):
			denied = append(denied, err)
		case apierrors.IsNotFound(err) && try.verb == "create":
			return d.noNamespace()
		case ignoreNotFound(err) != nil && !apierrors.IsBadRequest(err):
			return err
		}
	}
	return errors.Join(denied...)
}
