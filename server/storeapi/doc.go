// Package storeapi serves store.Store over HTTP, for store/remote: the routes of package wire
// under /store/, which the service adds to its table. It is stateless: every instance answers
// every call.
//
// # Access
//
// A caller opens a session in its own name ([Config].Own). From then on only the owner of the
// session may keep it alive, acquire and release with it, answer requests for it and close it.
// The engine says who the owner is, never the caller. Rights to groups are checked as well
// ([Config].May): campaign to acquire and release, observe to read, watch and list, step-down
// to ask a leader, and admin to close the session of another, to raise the epoch and to set
// attributes.
//
// Of a record that a caller sends only the group and the version are used.
package storeapi
