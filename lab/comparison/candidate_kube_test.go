package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const kubeNamespace = "default"

// leadByClientGo uses the package like its example.
func leadByClientGo(ctx context.Context, c candidacy, work func(context.Context, win)) error {
	lease, renew, retry := 15*time.Second, 10*time.Second, 2*time.Second
	if ttl := c.lease(); ttl > 0 {
		lease, renew, retry = ttl, ttl*2/3, ttl/6
	}
	api := &rest.Config{Host: "https://" + c.Engine, BearerToken: c.Secret, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	lock, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, kubeNamespace, c.Group, resourcelock.ResourceLockConfig{Identity: c.ID}, api, renew)
	if err != nil {
		return err
	}
	var working sync.WaitGroup
	defer working.Wait()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: lease, RenewDeadline: renew, RetryPeriod: retry, ReleaseOnCancel: c.Release,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				working.Add(1)
				defer working.Done()
				work(ctx, win{believes: func() bool { return ctx.Err() == nil }, said: transitions(ctx, lock)})
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return err
	}
	// Run ends with each term lost.
	for ctx.Err() == nil {
		elector.Run(ctx)
	}
	return nil
}

// transitions reads the counter of the Lease: the library does not give it to the leader.
func transitions(ctx context.Context, lock resourcelock.Interface) string {
	record, _, err := lock.Get(ctx)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(record.LeaderTransitions)
}
