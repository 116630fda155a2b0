// Package wire is what store/remote and the election service say to each other:
// lease.Store as routes under /v1/store/, one for each method.
//
// Every call is a POST with one JSON object, also where it only reads: scopes do
// not fit into addresses. Durations are integers of milliseconds, rounded such
// that nobody is promised more than the engine gave. A call carries in
// TimeoutHeader how long its caller waits, and in DeploymentHeader which
// deployment it means; the service of another one does nothing and says so.
//
// A record goes out as it is, and comes back as its group and the version that was
// seen: what a caller says about a group must not become its record.
//
// An answer other than 200 is a [Problem], by whose code, not its status, a
// client knows the error of lease.Store again. A code that it does not know
// leaves the outcome unknown.
package wire
