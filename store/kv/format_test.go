package kv

import (
	"errors"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/store"
)

// Fields that are not known are passed over, and a newer format is refused with what to do:
// so this version and a later one that adds fields work together, and neither spoils what a
// later one has written.
func TestFormats(t *testing.T) {
	read := map[string]func(text string) error{
		"record": func(text string) error {
			r, err := decodeRecord(Item{Key: recordKey("billing"), Value: []byte(text), Version: 3})
			if r.Group != "billing" || r.Version != 3 || err == nil && (r.Token != 7 || r.Candidate.ID != "a") {
				t.Errorf("%s: %+v", text, r)
			}
			return err
		},
		"session": func(text string) error {
			d, err := decodeSession(Item{Key: sessionKey("1f"), Value: []byte(text), Version: 3, Created: 3})
			if d.ID != "1f" || err == nil && d.Candidate.ID != "a" {
				t.Errorf("%s: %+v", text, d) // it lives, whatever it says
			}
			return err
		},
	}
	const rest = `"node_id":"a","token":7,"scope":["billing"],"terms":[],"of_the_next_version":{"x":1}}`
	for what, f := range read {
		if err := f(`{"format":2,` + rest); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		for _, newer := range []string{`{"format":3,` + rest, `{"token":["of another type"],"node_id":{"of":"another type"},"terms":"and another","scope":1,"format":3}`} {
			err := f(newer)
			if !errors.Is(err, store.ErrNewer) || !strings.Contains(err.Error(), "upgrade this program") || !strings.Contains(err.Error(), what+"/") {
				t.Errorf("%s %s: %v", what, newer, err)
			}
		}
		if err := f(`{"node_id":{}}`); err == nil || errors.Is(err, store.ErrNewer) {
			t.Errorf("%s of another kind: %v", what, err)
		}
	}
}
