// Package lock holds locks on names that come and go, such as one per tenant or order. It is for
// work that one process at a time must do for an entity, and where the entities are too many for a
// group each that stays for ever.
//
//	locks, err := lock.New(node, "tenants") // the node's scope has "tenants--*"
//	err = locks.Do(ctx, "42", func(ctx context.Context, term *tenure.Term) error {
//		return migrate(ctx, term.Stamp())
//	})
//
// A lock is a short leadership of the group "tenants--42", so everything about terms applies: the
// work gets a context that ends with the term, and a token for fenced sinks.
//
// # Why removing a name cannot repeat a token
//
// Do removes the record of the name when nobody holds or takes the lock any more. The store raises a
// token floor to the record's token before it removes the record, and a name without a record gets
// a token above the floor: see store.Retirer. The names of a set share 64 floors, so a set leaves at
// most 64 keys in the store, however many names it has had, and one record per name in use. The
// tokens of a name increase, with gaps.
//
// # Limitations
//
// A process that dies while it holds a lock leaves the record of the name until the name is used
// again. A store that is not a store.Retirer, such as store/remote, keeps the records of all names.
//
// A node remembers each name that it has locked until the node is closed, a few hundred bytes.
//
// Locks of one process on one name are taken in no particular order. A lock is not reentrant: Do
// within Do for the same name waits for ever.
package lock
