// Package servertest runs real database servers for tests: PostgreSQL and Redis as
// processes of their own on loopback, which can be killed and restarted.
//
//	server := servertest.Postgres(t)
//	db, err := sql.Open("pgx", server.URL())
//	server.Kill()
//	server.Start()
//
// A server is looked for on the machine, then installed from the packages of the
// distribution (as root), then unpacked from them into the cache folder of the
// checkout, without its start scripts. Where that fails a test is skipped, and
// fails if CI is set.
//
// Every method does what it says before it returns: a killed server is gone, one
// that was started serves. Nothing outlives the test, even if the test is killed,
// except an empty directory of data in that case.
package servertest
