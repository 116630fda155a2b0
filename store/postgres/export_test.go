package postgres

// CheckServer is for tests: an old server is not at hand.
var CheckServer = checkServer
