// Package shard spreads a numbered set of groups over processes, so that each has one owner.
//
//	err := shard.Run(ctx, node, shard.Config{Set: "orders", Count: 1000}, func(ctx context.Context, s shard.Shard) error {
//		for order := range ordersOf(ctx, s.Index) {
//			if err := sink.Write(ctx, s.Term.Stamp(), order); err != nil {
//				return err // refused: another owns the shard
//			}
//		}
//		return ctx.Err()
//	})
//
// Every process of the fleet calls Run with the same Set and Count. Shard 17 of the set "orders" is
// the group "orders-17", with a term and a token of its own, so everything that holds for a group
// holds for a shard: at most one owner acts, and a fence refuses the writes of an earlier one.
//
// # Placement
//
// Each shard ranks the candidates by weighted rendezvous hashing over their ids. The first of them
// that lives should own it, so a process that restarts gets its shards back, and a process that dies
// or joins moves no shard of others. An owner that is not the first hands the shard over: it waits
// until the shard's work has returned, moves at most MaxMoves shards at a time, and only to
// candidates that have lived for Settle.
//
// Placement is advice and ownership is an election. Processes that disagree about who lives, or
// whose weights differ for a moment, can move a shard once too often. They cannot both own it.
//
// # Operators
//
// Weights and pins are attributes of the store: see Weigh and Pin. Processes read them once in a
// Settle. A pinned candidate that does not live is passed over.
//
// # Coordinator
//
// A coordinator can place shards by measured load: see Place, and examples/controlplane. It is elected
// in a group of its own, and its placements are fenced by its token. Nothing depends on it.
//
// # Limitations
//
// The number of shards of a set is fixed while a process runs it. All processes of a set need the
// same version of this package, because the rank is computed by each of them.
package shard
