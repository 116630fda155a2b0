// Package node is one process of a fleet that elects a leader among its nodes and does the
// leader's work only while it leads.
//
// Limitations: two nodes may both believe that they lead at the same time. The ledger accepts
// the writes of only one of them. Everything that a leader does is a stamped write to the
// ledger, made through package fencedwriter, and a caller is answered after the ledger has
// acknowledged the write. So a deposed leader answers nobody.
//
// The work of a leader is the sequencer, the scheduler and the compaction, each a package. A
// node that does not lead keeps its connections to the ledger open and reads what the work
// needs once a second.
package node
