// Package service is the election over HTTP: for programs that are not written in Go,
// or should not hold an engine's credentials, and for operators.
//
// What it does not promise first. A caller that leads knows it until its TTL has passed,
// counted on its own clock from when it sent the last request that was answered well, and
// not a moment longer; nothing calls it back. Whatever it writes to must check the term,
// which is the fencing token. The answer of GET leader is a hint, never a permission.
//
// # Stateless
//
// Everything that matters lies in the engine: records, sessions, policies, cool-downs.
// An instance keeps only what it can learn again, so any instance answers any call, and
// one that dies takes nothing with it but the connections it had. A handle names a
// session of a deployment; it is no secret and no permission: what it names is compared
// with the caller's identity, the node and the record each time.
//
// # Campaigns
//
// A campaign finds the group led by the caller's node and says so again (the same call
// repeated has the same answer), or finds it vacant, opens a session for node and group
// and takes it, or answers 409 with who leads. With ?wait= it stands in line: it keeps
// its session alive while the caller waits, and no longer. Whoever waits on one instance
// tries in the order of priority, then age, one step apart.
//
// Sessions are never closed by the service on its own account, for somebody may trust
// them; one that is not needed any more runs out.
//
// A session that a caller opens itself carries many groups with one keep-alive.
//
// # Requests to a leader
//
// Nobody takes one group out of a living session. Step-down and transfer are asked of the
// leader: it finds the request in the answer to its next renewal or keep-alive, stops, and
// resigns, which answers the request. Force closes the whole session, says what else
// that ends, and breaks the promise that no two believe to lead.
//
// # Watching
//
// One watch of the engine per instance feeds all streams (package feed). Ids in a stream
// are cursors that hold on every instance.
package service
