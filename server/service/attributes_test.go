package service

import (
	"errors"
	"testing"

	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/remote"
)

// The attribute routes of the store show a caller only what its role may observe. A candidate
// can write marks for its own groups, but no rules.
func TestAttributesByRole(t *testing.T) {
	node := &caller{name: "n", rules: []rule{{"mine-", []auth.Verb{auth.Campaign, auth.Observe}}}}
	reader := &caller{name: "r", rules: []rule{{"", []auth.Verb{auth.Observe}}}}
	in, _ := gated(t, []*caller{node, reader})
	n, r := client(in, node), client(in, reader)
	for _, tt := range []struct {
		name          string
		seen, written bool // whether the node can read and write it
	}{
		{"group/mine-1", true, false},
		{"group/theirs", false, false},
		{"once/mine-1/report", true, true},
		{"once/theirs/report", false, false},
		{"node/n", true, false},
		{"node/another", false, false},
		{"service/groups-0", false, false},
	} {
		ctx := t.Context()
		if _, err := n.Attributes(ctx, tt.name); (err == nil) != tt.seen || err != nil && !errors.Is(err, remote.ErrDenied) {
			t.Errorf("%s, read by the node: %v", tt.name, err)
		}
		if _, err := n.SetAttributes(ctx, store.Attributes{Name: tt.name, Values: map[string]string{"k": "v"}}); (err == nil) != tt.written || err != nil && !errors.Is(err, remote.ErrDenied) {
			t.Errorf("%s, written by the node: %v", tt.name, err)
		}
		if _, err := r.Attributes(ctx, tt.name); err != nil {
			t.Errorf("%s, read by one who may observe everything: %v", tt.name, err)
		}
		if _, err := r.SetAttributes(ctx, store.Attributes{Name: tt.name}); !errors.Is(err, remote.ErrDenied) {
			t.Errorf("%s, written by one who may only observe: %v", tt.name, err)
		}
	}
}
