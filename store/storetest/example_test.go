package storetest_test

import (
	"testing"
	"time"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
	"github.com/tenurehq/tenure/store/storetest"
)

// The test of an engine.
func ExampleRun() {
	_ = func(t *testing.T) { // func TestStore(t *testing.T)
		engine := mem.New(mem.Options{})
		t.Cleanup(engine.Close)
		storetest.Run(t, storetest.Engine{
			Open:   func(*testing.T) store.Store { return engine },
			TTL:    500 * time.Millisecond,
			Settle: 100 * time.Millisecond,
		})
	}
}
