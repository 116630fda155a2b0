// Package bench measures elections with real processes and real engines, beside
// what people use today, in one run. There is nothing to import: its benchmarks
// are tests behind a switch, started by make.
//
// Every duration is read on one clock (CLOCK_BOOTTIME), which all processes of a
// machine share. Absolute times differ from machine to machine; what a bar
// compares comes from the same run.
package bench
