// Package lab runs a fleet of real processes on one machine: an engine, the ledger, nodes
// and workers, with a proxy between each node and what it calls, so that faults can be
// injected there.
//
// All programs listen on free loopback ports, end with the process that started them, for
// whatever reason that ends, and leave no files. A fleet file lists them. Do not keep data of
// value in such a fleet.
package lab
