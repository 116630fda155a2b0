// Package natsfence fences what a leader publishes to a stream of NATS JetStream (server 2.11 and
// later).
//
//	f, err := natsfence.New(js, "ORDERS", "orders.mark") // both subjects belong to the stream
//	…
//	_, err = f.Publish(ctx, term.Stamp(), "orders.new", data)
//
// # Limitations
//
// Only publishers that use this package are checked. The mark is a message of the stream on a
// subject of its own: the stream must keep the last message of that subject, so limits on age,
// bytes or messages must not remove it, and nobody may purge it. A publish whose answer was lost
// has an unknown outcome; set Nats-Msg-Id, so that the server drops a repetition. Consumers should
// filter the subject of the mark out.
//
// A stream with one replica is as durable as its disk; sync_interval: always keeps acknowledged
// messages when the machine dies.
//
// # How it works
//
// A message is published with the condition that the last message on the subject of the mark is
// still the one that was compared with the stamp. The server checks this in the step in which it
// stores the message. A new token first replaces the mark, under the same condition.
package natsfence
