// Package remote keeps elections in the election service: a lease.Store over HTTP, for
// programs that should not hold the credentials of an engine.
//
//	store, err := remote.Open(ctx, remote.Config{
//		URLs:  []string{"https://tenure-1:7600", "https://tenure-2:7600"},
//		TLS:   &tls.Config{Certificates: certs, RootCAs: roots},
//	})
//	if err != nil {
//		return err
//	}
//	defer store.Shutdown()
//	node, err := lease.New(store, lease.Config{…})
//
// # Instances
//
// Every instance of the service answers every call. A call goes to one instance, and to the
// next when that one cannot be reached, within the deadline of the call. Keep-alives and
// reads also move on when an instance does not answer, because they may be repeated. The
// instance that answered is asked first the next time. The order of the URLs is the order of
// preference: a fleet spreads its load by giving each process another order.
//
// # Watches
//
// A watch is a stream on a connection of its own. The service sends at least one line per
// heartbeat. Three missed heartbeats end the watch with an error, and the next watch begins at
// another instance. A slow consumer gets the newest view of each group, not every view.
//
// # Connections
//
// Keep-alives have connections of their own, so that other calls of the process, which share
// at most 64 connections to an instance, cannot delay them.
//
// # Limitations
//
// A call that changes something and gets no answer has an unknown outcome and is not repeated;
// package lease reads the store and decides. If the service denies a call, the error is
// ErrDenied, which lease.Definite does not count: nothing was done, and a retry cannot succeed.
package remote
