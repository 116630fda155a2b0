package fencetest_test

import (
	"testing"

	"github.com/tenurehq/tenure/fence/fencetest"
)

// The test of a sink.
func ExampleRun() {
	// Create makes a fresh resource and returns where it is; Open connects to it.
	var create func(t testing.TB) string
	var open func(where string) (fencetest.Resource, error)

	_ = func(t *testing.T) { // func TestSink(t *testing.T)
		fencetest.Run(t, fencetest.Sink{Name: "invoices", Create: create, Open: open})
	}
}
