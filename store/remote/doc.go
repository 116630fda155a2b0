// Package remote is a store.Store over HTTP, in the election service (tenure serve). It is for
// programs that should not hold an engine's credentials.
//
//	store, err := remote.Open(ctx, remote.Config{
//		URLs: []string{"https://tenure-1:7400", "https://tenure-2:7400"},
//		TLS:  &tls.Config{Certificates: certs, RootCAs: roots},
//	})
//	if err != nil {
//		return err
//	}
//	defer store.Close()
//	err = lease.Lead(ctx, store, "billing", "node-1", work)
//
// # Limitations
//
// Not every call has a known outcome. A call that changes something and gets no answer has an
// unknown outcome and is not repeated here; package lease reads and decides. A call that the
// service refuses for lack of permission is store.ErrDenied: it had no effect, and a campaign
// ends with it.
//
// # Instances
//
// Every instance of the service answers every call. A call goes to one instance and moves on to
// the next if that one cannot be reached, within the call's deadline. Keep-alives and reads also
// move on if there is no answer, because they can be repeated. The instance that answered is
// asked first next time, so a stopped, black-holed or killed instance costs one attempt. The
// order of the URLs is the order of preference: to spread the load, give each process another
// order.
//
// # Watches
//
// A watch is a stream on a connection of its own. The service sends at least one line per
// heartbeat. After three heartbeats without a line the watch ends with an error, and the next
// one starts at another instance. It is read as fast as it arrives: a slow consumer gets the
// newest view of each group, not all of them.
//
// # Connections
//
// Keep-alives have connections of their own. Other calls share at most 64 connections per
// instance, so they cannot block keep-alives.
package remote
