package prevote

import (
	"testing"
	"time"
)

// Without pre-vote a follower raises its term while it is cut off, and disrupts the leader when it
// comes back: the counts can be above 0. With pre-vote its term stays. (Whether a leader is then
// disrupted is not tested: on a machine that stalls, one may be lost by itself.)
func TestRejoin(t *testing.T) {
	t.Parallel()
	results := map[bool]Result{}
	for _, preVote := range []bool{true, false} {
		r, err := Run{PreVote: preVote, Rounds: 3, Heartbeat: 500 * time.Millisecond, Seed: 1}.Do(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Log(r)
		results[preVote] = r
	}
	if off, on := results[false], results[true]; off.Raised != off.Rounds || off.Disruptions == 0 || off.Terms == 0 || on.Raised >= off.Raised {
		t.Errorf("%+v, %+v", off, on)
	}
}
