// Package wire has the JSON types and routes that store/remote and the election service share:
// store.Store as routes under /v1/store/, one for each method.
//
// Every call is a POST with one JSON object, also for reads, because scopes do not fit into URLs.
// Durations are whole milliseconds, rounded so that nobody is promised more than the engine
// granted. TimeoutHeader says how long the caller waits. DeploymentHeader says which deployment
// it means; a service of another deployment refuses the call.
//
// A record is sent completely, and comes back as its group and the version that was seen: a
// caller's copy of a record never becomes the record.
//
// An answer other than 200 is a [Problem]. Its code, not its status, tells the client which error
// of store.Store it is.
//
// # Limitations
//
// The types are for these two programs. Other clients use the API of docs/api.md. A code that the
// client does not know leaves the outcome unknown.
package wire
