// Package process looks at processes of this machine by their pids: whether they run, are
// stopped or are traced. A [Guard] resumes a stopped process if this program dies.
//
// # Limitations
//
// Only Linux shows the state of a process. Elsewhere no process counts as stopped or traced,
// and there is no guard.
package process
