// Package servertest runs real servers for tests: PostgreSQL, Redis and the API server of
// Kubernetes, as separate processes on loopback, which can be killed and restarted.
// Package servertest runs real database servers for tests: PostgreSQL, Redis and Consul as
// separate processes on loopback, which can be killed and restarted.
//
//	server := servertest.Postgres(t)
//	db, err := sql.Open("pgx", server.URL())
//	server.Kill()
//	server.Start()
//
// It uses a server that is installed, else installs the distribution's package (as root), else
// unpacks the package into the cache folder of the checkout. An API server is built from source
// into that folder. If all fail the test is skipped; it fails if CI is set.
// unpacks the package into the cache folder of the checkout. If all fail the test is skipped;
// it fails if CI is set. Consul is built from its Go module, by testdata/consul.
//
// A method returns when its effect is certain: a killed server is gone, a started one is
// ready. All processes end with the test. A test that is killed leaves a data folder.
package servertest
