// Package node is a node: one process of a fleet that elects a leader among its
// nodes and does the leader's work only while it leads.
//
// What is not guaranteed first: that two nodes never believe to lead at once. What is:
// that the ledger takes the writes of one of them only. Everything that a leader does
// is a stamped write to the ledger, made through package pen, and a caller is answered
// after it was acknowledged, so a leader that was deposed answers nobody.
//
// The work of a leader is the sequencer (package sequence), the scheduler (schedule)
// and the compaction (compact). A node that does not lead keeps itself ready: its
// connections to the ledger are open, and what the work needs is read once a second.
package node
