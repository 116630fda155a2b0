// Package etcdfence fences what a leader writes to etcd.
//
//	f, err := etcdfence.New(client, "/invoices/mark")
//	…
//	_, err = f.Do(ctx, term.Stamp(), clientv3.OpPut("/invoices/2026-11", "7"), clientv3.OpDelete("/invoices/draft"))
//
// # Limitations
//
// Only writes through this package are checked: give other users of the keys read access only.
// A write whose answer was lost has an unknown outcome: the error is no refusal. An etcd that was
// restored from a backup has lost the mark too; raise the epoch, and seal before others write.
//
// # How it works
//
// The mark is a key. A write is one transaction: if the mark has not changed since it was compared
// with the stamp, the operations are executed. Writers under one token do not disturb each other,
// because only a new token changes the mark. Nothing waits, and a paused writer holds no lock.
package etcdfence
