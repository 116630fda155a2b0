// Package lab runs a fleet of real processes on one machine: an engine, the ledger,
// nodes and workers, with a proxy between each node and what it leans on, so that
// faults can be put there.
//
// Everything is started on free loopback ports, ends with the process that started
// it, however that ends, and leaves nothing behind. A fleet file says where everything
// is. Nothing of value is kept in such a fleet.
package lab
