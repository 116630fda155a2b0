//go:build race

package lease_test

// raced: the timers of one bubble share a context of the race detector, and two that
// fire at once on two processors can corrupt it and end the test with a fault in the
// runtime (golang/go#78156). So a bubble under the detector has one processor: it
// finds races by order, not by chance, and needs no second one. The largest tests are
// smaller under it; their full size runs in the build without.
const raced = true
