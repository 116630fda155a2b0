// Package servertest runs real servers for tests: PostgreSQL, MariaDB, Redis, ZooKeeper, Consul,
// a server of S3 and the API server of Kubernetes, as separate processes on loopback, which can be killed and restarted.
//
//	server := servertest.Postgres(t)
//	db, err := sql.Open("pgx", server.URL())
//	server.Kill()
//	server.Start()
//
// It uses a server that is installed, else installs the distribution's package (as root), else
// unpacks the package into the cache folder of the checkout. Consul, the server of S3 and the API server are built
// from the modules in testdata into that folder. If all fail the test is skipped; it fails if CI is
// set.
//
// Start starts the server of an engine for a program that is not a test.
//
// A method returns when its effect is certain: a killed server is gone, a started one is
// ready. All processes end with the test. A test that is killed leaves a data folder.
package servertest
