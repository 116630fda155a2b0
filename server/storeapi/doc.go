// Package storeapi serves lease.Store over HTTP, for store/remote: the routes of
// package wire under /store/, which the service puts into its table.
//
// It is stateless: any instance answers any call.
//
// # Who may what
//
// Nobody is believed. A session is opened in the name of its caller ([Config].Own),
// and from then on it is its owner's alone: to keep alive, to acquire and release
// with, to answer for, to close. The owner of a session is what the engine says it
// is, never what the caller says. Groups are checked besides ([Config].May): to
// campaign for what is acquired and released, to observe what is read, watched and
// listed, step-down for what is asked of a leader, and admin to close the session
// of another, to raise the epoch, and to set attributes.
//
// A caller's record counts for its group and its version; the engine knows the rest.
package storeapi
