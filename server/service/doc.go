// Package service serves elections over HTTP: for programs that are not written in Go or
// should not hold the credentials of an engine, and for operators.
//
// # State
//
// Records, sessions, policies and cool-downs are in the engine. An instance only has caches,
// so every instance answers every call, and an instance that stops loses nothing but its
// connections. A handle names a session of a deployment. It is neither a secret nor a
// permission: each call compares it with the identity of the caller, the node and the record.
//
// # Campaigns
//
// If the caller's node leads the group already, a campaign answers that again: a repeated call
// has the same answer. If the group is vacant, the campaign opens a session for node and group
// and acquires it. Otherwise it answers 409 and the leader. With ?wait= it waits, and keeps
// its session alive only while the caller waits. Candidates that wait on one instance try in
// the order of priority, then age, one step apart.
//
// The service never closes a session by itself, because the client may still trust it. A
// session that is not needed any more expires. A session that a client opens renews many
// groups with one keep-alive.
//
// # Requests to a leader
//
// Nobody takes one group out of a living session. Step-down and transfer are requests to the
// leader. It gets them in the answer to its next renewal or keep-alive, stops its work and
// resigns, which answers the request. Force closes the whole session, reports what else that
// ends, and breaks the promise that no two nodes believe that they lead.
//
// # Watching
//
// One watch of the engine per instance serves all streams (package feed). The ids in a stream
// are cursors that are valid on every instance.
//
// # Limitations
//
// A leader may act until its TTL has passed, counted on its own clock from when it sent the
// last request that succeeded; nothing calls it back. What it writes to must check the term,
// which is the fencing token. The answer of GET leader is a hint, never a permission.
package service
