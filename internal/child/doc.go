// Package child starts programs for tests and the lab. They end with the process that started
// them, for whatever reason that ends. It also finds what they need: ports, folders, locks.
package child
