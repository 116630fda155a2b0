package service

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/app/steer"
	"github.com/tenurehq/tenure/lease"
)

func extend(in *instance, l Leading, by int64) Renewed {
	in.t.Helper()
	return want[Renewed](in, 200, "POST", "/v1/groups/"+l.Group+"/renew", RenewRequest{NodeID: l.LeaderNodeID, Term: l.Term, Handle: l.Handle, ExtendByMS: by})
}

// A wish is for the next session that leads the group and for no other: a campaign that is
// repeated while the term lasts leaves it alone, and the session after the next has the
// TTL that is asked for.
func TestWishIsForTheNextSession(t *testing.T) {
	in := serve(t, memStore(t))
	campaign := func() Leading {
		t.Helper()
		return want[Leading](in, 200, "POST", "/v1/groups/billing/campaign", CampaignRequest{NodeID: "a", TTLMS: 6000, Instance: instanceA})
	}
	l := campaign()
	if r := extend(in, l, 3000); r.GrantedTTLMS != 9000 {
		t.Fatalf("%+v", r)
	}
	if again := campaign(); again.Term != l.Term || again.TTLMS != 6000 {
		t.Errorf("the same term: %+v", again)
	}
	for _, ttl := range []int64{9000, 6000, 6000} {
		resign(in, l)
		if l = campaign(); l.TTLMS != ttl {
			t.Errorf("term %d has a TTL of %d, want %d", l.Term, l.TTLMS, ttl)
		}
	}
}

// A node that wishes for as much as it can, for any number of groups, takes a bounded room
// and can be cordoned, with the longest reason.
func TestWishesDoNotKeepFromCordon(t *testing.T) {
	store := memStore(t)
	in := serve(t, store)
	for i := range steer.MaxWishes + 40 {
		group := fmt.Sprintf("%s-%03d", strings.Repeat("g", 59), i)
		l := lead(in, group, "a")
		if r := extend(in, l, 1000); r.GrantedTTLMS != l.TTLMS+1000 {
			t.Fatalf("wish %d: %+v", i, r)
		}
	}
	want[Node](in, 200, "PUT", "/v1/nodes/a/cordon", CordonRequest{Reason: strings.Repeat("x", steer.MaxReason)})
	refused(in, 409, "cordoned", "POST", "/v1/groups/another/campaign", CampaignRequest{NodeID: "a"})
	a, err := store.Attributes(t.Context(), steer.Wishes("a"))
	if err != nil || len(a.Values) != steer.MaxWishes {
		t.Errorf("%d wishes, %v", len(a.Values), err)
	}
	if node, err := store.Attributes(t.Context(), steer.Node("a")); err != nil || len(node.Values) != 1 {
		t.Errorf("beside the cordon there is %v, %v", node.Values, err)
	}
	if newest := steer.WishFor(lease.Attributes{Values: a.Values}, fmt.Sprintf("%s-%03d", strings.Repeat("g", 59), steer.MaxWishes+39)); newest.TTL == 0 {
		t.Error("the newest wish made room for others")
	}
}
