// Package child starts programs for tests and the lab. They end with the process that started
// them, however that ends. It also finds what they need: ports, folders, locks.
package child
