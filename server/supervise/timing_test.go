package supervise

import (
	"testing"
	"time"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/supervise/keeper"
)

// Every accepted timing has room for three keep-alives before SIGTERM and for the grace
// period. For a refused one, the suggested TTL is accepted.
func TestTiming(t *testing.T) {
	for ttl := 400 * time.Millisecond; ttl < 30*time.Second; ttl += 171 * time.Millisecond {
		for grace := time.Duration(0); grace < 20*time.Second; grace += 191 * time.Millisecond {
			got, err := Timing(ttl, grace)
			if err != nil {
				longer := ttlFor(lease.Timing{TTL: ttl}.Resolve(), grace)
				if _, err := Timing(longer, grace); longer <= ttl || err != nil {
					t.Fatalf("ttl %v, grace %v: %v is suggested: %v", ttl, grace, longer, err)
				}
				break
			}
			if got.Grace != grace+keeper.Reserve || 3*got.Beat >= ttl-got.Grace || got.Validate() != nil {
				t.Fatalf("ttl %v, grace %v: %+v", ttl, grace, got)
			}
		}
	}
}
