package supervise

import (
	"testing"
	"time"

	"github.com/tenurehq/tenure/lease"
)

// Every timing that is accepted has room for three beats before SIGTERM, and leaves the
// command its grace; the TTL that is advised for one that is refused is accepted.
func TestTiming(t *testing.T) {
	for ttl := 400 * time.Millisecond; ttl < 30*time.Second; ttl += 171 * time.Millisecond {
		for grace := time.Duration(0); grace < 20*time.Second; grace += 191 * time.Millisecond {
			got, err := Timing(ttl, grace)
			if err != nil {
				longer := ttlFor(lease.Timing{TTL: ttl}.Resolve(), grace)
				if _, err := Timing(longer, grace); longer <= ttl || err != nil {
					t.Fatalf("ttl %v, grace %v: %v is advised: %v", ttl, grace, longer, err)
				}
				break
			}
			if got.Grace != grace+Reserve || 3*got.Beat >= ttl-got.Grace || got.Validate() != nil {
				t.Fatalf("ttl %v, grace %v: %+v", ttl, grace, got)
			}
		}
	}
}
