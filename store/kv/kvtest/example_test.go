package kvtest_test

import (
	"testing"
	"time"

	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/kv/kvtest"
	"github.com/tenurehq/tenure/store/mem"
)

// The test of a driver.
func ExampleRun() {
	_ = func(t *testing.T) { // func TestDriver(t *testing.T)
		driver := mem.NewDriver(mem.Options{MinTTL: 200 * time.Millisecond})
		t.Cleanup(driver.Close)
		kvtest.Run(t, kvtest.Engine{
			Open:   func(*testing.T) kv.Driver { return driver },
			Settle: time.Second,
		})
	}
}
