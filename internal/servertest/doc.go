// Package servertest runs real database servers for tests: PostgreSQL, Redis and ZooKeeper as separate
// processes on loopback, which can be killed and restarted.
//
//	server := servertest.Postgres(t)
//	db, err := sql.Open("pgx", server.URL())
//	server.Kill()
//	server.Start()
//
// It uses a server that is installed, else installs the distribution's package (as root), else
// unpacks the package into the cache folder of the checkout. If all fail the test is skipped;
// it fails if CI is set.
//
// A method returns when its effect is certain: a killed server is gone, a started one is
// ready. All processes end with the test. A test that is killed leaves a data folder.
package servertest
