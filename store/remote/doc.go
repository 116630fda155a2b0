// Package remote keeps elections in the election service: a lease.Store over
// HTTP, for programs that should not hold an engine's credentials.
//
// What it does not promise first: an outcome for every call. A call that changes
// something and gets no answer has an unknown outcome, and is not made again
// behind the caller's back; package lease reads, and decides. What a service
// refuses for want of permission is ErrDenied, which lease.Definite does not
// count: nothing happened then, but nothing will by trying again either.
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
// Every instance of the service answers every call. Each call is given to one,
// and moves on to the next when that one cannot be reached, within the call's
// deadline; keep-alives and reads also when it does not answer, for they may be
// repeated. The one that answered is asked first next time. An instance that is
// stopped, black-holed or killed costs one try. The order of the URLs is the
// order of preference: a fleet spreads its load by giving each process another.
//
// # Watches
//
// A watch is a stream on a connection of its own, and the service sends at least
// one line in each heartbeat. Three of them without a line end the watch with an
// error, and the next one is begun at another instance. It is read as fast as it
// comes: a slow consumer gets the newest view of each group, not all of them.
//
// # Lanes
//
// Keep-alives have connections of their own, so that a thousand other calls of
// the process, for which there are no more than 64 connections to an instance,
// do not stand in their way.
package remote
