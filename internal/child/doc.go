// Package child starts programs for tests: they end with the test, however that
// ends, and what they need (a port, a folder, a lock) is found the same way
// everywhere.
package child
