// Package bench measures elections with real processes and real engines, and compares them in
// the same run with other libraries. It exports nothing: its benchmarks are tests that make
// starts with an environment variable.
//
// Every duration is read on CLOCK_BOOTTIME, which all processes of a machine share. Absolute
// times differ from machine to machine, so a bar compares figures of the same run.
package bench
