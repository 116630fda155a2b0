// Package strategies runs election strategies beside each other: each candidate is a process, and
// each server is a real one. It injects the same faults into all of them and counts how many
// candidates believe at once, which stale writes the resource accepts, how long a failover takes,
// and how many messages it costs.
//
// Most of the strategies are wrong, on purpose: they are what people use. Nobody may import this
// package but the command lab.
//
// # Limitations
//
// The servers run on one machine and share its clock. A cut link holds back what is sent, as TCP
// does; when it is healed the rest arrives. What a stopped process would do with its leadership
// is not counted, since it does nothing.
//
// Messages are what the strategy sends: messages between candidates, or requests to servers.
// Acknowledgements of TCP, and what servers send to each other, are not counted. Raft's messages
// are writes to a connection.
package strategies
