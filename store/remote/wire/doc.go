// Package wire defines the messages between store/remote and the election service:
// lease.Store as routes under /v1/store/, one for each method.
//
// Every call is a POST with one JSON object, even a read: a scope does not fit into a URL.
// Durations are integers of milliseconds, rounded so that nobody is promised more than the
// engine granted. TimeoutHeader says how long the caller waits. DeploymentHeader says which
// deployment the caller means; a service of another deployment refuses the call.
//
// A record is sent in full by the service. A caller sends back its group and version only, so
// that a caller cannot change a record.
//
// An answer other than 200 is a [Problem]. A client finds the error of lease.Store by the code,
// not by the status. An unknown code means that the outcome is unknown.
package wire
