package clock_test

import (
	"fmt"
	"time"

	"github.com/tenurehq/tenure/clock"
)

// The clock that leases are measured on.
func Example() {
	c := clock.System()
	until := c.Now().Add(time.Minute)
	fmt.Println("expired:", c.Now() >= until)
	// Output:
	// expired: false
}
