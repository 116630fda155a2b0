package diagnose

import (
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/server/advise"
	"github.com/tenurehq/tenure/server/storecli"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

// The doctor names a node id that two processes use, with their sessions and addresses.
func TestDoctorNamesDuplicates(t *testing.T) {
	st := mem.New(mem.Options{})
	t.Cleanup(st.Close)
	for instance, address := range map[string]string{"instance-1-of-node-1": "10.0.0.1:80", "instance-2-of-node-1": "10.0.0.2:80"} {
		o := store.OpenOptions{Scope: store.Scope{"billing"}, Instance: instance}
		if _, err := st.Open(t.Context(), tenure.Candidate{ID: "node-1", Address: address}, time.Hour, o); err != nil {
			t.Fatal(err)
		}
	}
	d := &doctor{id: "doctor", conn: storecli.Connection{Timeout: time.Minute}}
	var facts advise.Facts
	if failed := d.query(t.Context(), &storecli.Opened{Store: st}, &facts); len(failed) > 0 {
		t.Fatal(failed)
	}
	for _, f := range facts.Findings() {
		if f.Check == "identity" && f.Level == advise.Warning && strings.Contains(f.Says, "10.0.0.1:80") && strings.Contains(f.Says, "10.0.0.2:80") {
			return
		}
	}
	t.Errorf("no such finding: %+v", facts.Findings())
}
