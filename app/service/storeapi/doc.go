// Package storeapi serves lease.Store over HTTP, for store/remote: the routes of
// package wire under /store/, which the service puts into its table.
//
// It is stateless in the sense that counts: any instance answers any call. What it
// remembers are facts that do not change, so that it need not ask the engine for
// them twice: whose a session is (a session's id is never used again), and what
// stands in a record of a certain version and token.
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
// A caller's record counts for its version and its token. The rest of it, which an
// engine may rely on, is read from the engine, for a caller that could write terms
// and tokens into a record could take both back.
package storeapi
