// Command controller is an operator's manager with one runnable that runs only while its process
// leads. Start it twice, and end the first.
//
//	go run . -namespace default
//
// To switch an operator, turn off LeaderElection in the manager's options, and add its runnables
// with whileLeading.
package main

import (
	"context"
	"flag"
	"log"
	"os"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kubernetes"
)

func main() {
	namespace := flag.String("namespace", "default", "the namespace of the Leases")
	flag.Parse()
	if err := run(ctrl.SetupSignalHandler(), *namespace); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, namespace string) error {
	cfg, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	st, err := kubernetes.Open(ctx, kubernetes.Config{Namespace: namespace, REST: cfg})
	if err != nil {
		return err
	}
	defer st.Close()
	mgr, err := ctrl.NewManager(cfg, ctrl.Options{})
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	if err := mgr.Add(whileLeading(st, "my-operator", host, reconcile)); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// whileLeading runs what newRunnable returns only while this process leads the group. Each term has a
// runnable of its own, because a controller can be started once. The context of Start ends with
// the term. Put term.Stamp into every write, so that the resource can refuse a stale leader.
func whileLeading(st store.Store, group, id string, newRunnable func(*tenure.Term) (manager.Runnable, error)) manager.Runnable {
	return manager.RunnableFunc(func(ctx context.Context) error {
		return lease.Lead(ctx, st, group, id, func(ctx context.Context, term *tenure.Term) error {
			runnable, err := newRunnable(term)
			if err != nil {
				return err
			}
			return runnable.Start(ctx)
		})
	})
}

// reconcile is the operator's work. A controller comes from controller.NewUnmanaged.
func reconcile(term *tenure.Term) (manager.Runnable, error) {
	return manager.RunnableFunc(func(ctx context.Context) error {
		for {
			select {
			case <-time.After(time.Second):
				log.Println("reconciled as", term.Stamp())
			case <-ctx.Done():
				return nil
			}
		}
	}), nil
}
