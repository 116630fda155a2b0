package etcd

import (
	"errors"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/tenurehq/tenure/lease"
)

// What has no format is of the first one, fields that are not known are passed over, and a
// newer format is refused with what to do: so this version and the previous one work
// together, and neither spoils what a later one has written.
func TestFormats(t *testing.T) {
	s := &Store{cfg: Config{Prefix: "/tenure"}}
	opened := int64(0)
	read := map[string]func(text string) error{
		"record": func(text string) error {
			r, err := decodeRecord(&mvccpb.KeyValue{Key: []byte("/tenure/election/billing"), Value: []byte(text)})
			if err == nil && (r.Token != 7 || r.Candidate.ID != "a") {
				t.Errorf("%s: %+v", text, r)
			}
			return err
		},
		"session": func(text string) error {
			opened++ // each is another session
			l, err := s.decodeSession(&mvccpb.KeyValue{Key: []byte("/tenure/electors/1f"), Value: []byte(text), CreateRevision: opened})
			if l.ID != "1f" {
				t.Errorf("%s: %+v", text, l) // it lives, whatever it says
			}
			return err
		},
	}
	const rest = `"node_id":"a","fence_token":7,"scope":["billing"],"terms":[],"of_the_next_version":{"x":1}}`
	for what, f := range read {
		for _, begin := range []string{`{`, `{"format":0,`, `{"format":1,`} {
			if err := f(begin + rest); err != nil {
				t.Errorf("%s %s: %v", what, begin, err)
			}
		}
		for _, newer := range []string{`{"format":2,` + rest, `{"fence_token":["of another type"],"node_id":{"of":"another type"},"terms":"and another","scope":1,"format":2}`} {
			err := f(newer)
			if !errors.Is(err, lease.ErrNewer) || !strings.Contains(err.Error(), "upgrade this program") || !strings.Contains(err.Error(), "/tenure/") {
				t.Errorf("%s %s: %v", what, newer, err)
			}
		}
		if err := f(`{"node_id":{}}`); err == nil || errors.Is(err, lease.ErrNewer) {
			t.Errorf("%s of another kind: %v", what, err)
		}
	}
}
