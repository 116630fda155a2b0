package main

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/store/kubernetes"
)

// One of two managers runs its runnable. After it is stopped, the other one runs its own; they
// never run at the same time.
func TestWhileLeading(t *testing.T) {
	api := servertest.Kubernetes(t, enginetest.Cluster(t, 1).Endpoints()[0])
	cfg := &rest.Config{Host: api.URL(), BearerToken: api.Admin, TLSClientConfig: rest.TLSClientConfig{CAFile: api.CAFile}}
	if err := api.Do(t.Context(), http.MethodGet, "/api/v1/namespaces/default", "", nil); err != nil {
		t.Fatal(err)
	}
	running := make(chan struct{}, 1) // has one element while a runnable runs
	started := make(chan string)
	start := func(id string) (stop func()) {
		st, err := kubernetes.Open(t.Context(), kubernetes.Config{Namespace: "default", REST: cfg})
		if err != nil {
			t.Fatal(err)
		}
		mgr, err := ctrl.NewManager(cfg, ctrl.Options{Metrics: server.Options{BindAddress: "0"}})
		if err != nil {
			t.Fatal(err)
		}
		err = mgr.Add(whileLeading(st, "operator", id, func(term *tenure.Term) (manager.Runnable, error) {
			if term.Stamp().Token == 0 {
				t.Error("a term without a token")
			}
			return manager.RunnableFunc(func(ctx context.Context) error {
				select {
				case running <- struct{}{}:
				default:
					t.Errorf("%s runs while another one does", id)
				}
				started <- id
				<-ctx.Done()
				<-running
				return nil
			}), nil
		}))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- mgr.Start(ctx) }()
		return func() {
			cancel()
			if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", id, err)
			}
			st.Close()
		}
	}
	leads := func(want string) {
		t.Helper()
		select {
		case id := <-started:
			if id != want {
				t.Errorf("%s runs, want %s", id, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("nobody runs, want %s", want)
		}
	}
	stopA := start("a")
	leads("a")
	stopB := start("b")
	select {
	case id := <-started:
		t.Errorf("%s runs beside a", id)
	case <-time.After(2 * time.Second):
	}
	stopA()
	leads("b")
	stopB()
}
