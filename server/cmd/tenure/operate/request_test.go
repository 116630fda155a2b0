package operate

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/operator"
	"github.com/tenurehq/tenure/server/storecli"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
)

// A transfer that ended with another leader is reported as such, with exit code 3.
func TestTransferEndedElsewhere(t *testing.T) {
	st := mem.New(mem.Options{})
	t.Cleanup(st.Close)
	open := func(node string) store.Session {
		l, err := st.Open(t.Context(), tenure.Candidate{ID: node}, time.Hour, store.OpenOptions{Scope: store.Scope{"billing"}})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	a, _, c := open("a"), open("b"), open("c")
	granted, err := st.Acquire(t.Context(), a.ID, store.Record{Group: "billing"})
	if err != nil {
		t.Fatal(err)
	}
	handed := make(chan error, 1)
	go func() {
		_, err := st.Release(context.Background(), a.ID, c.ID, store.Transferred, granted[0])
		handed <- err
	}()
	q := &request{order: operator.Order{Verb: store.Transfer, To: "b", Wait: time.Minute}}
	var stdout bytes.Buffer
	r := &storecli.Run{Store: operator.Store{Store: st, Call: time.Minute}, Out: &cli.Output{Format: cli.FormatJSON, W: &stdout}}
	err = q.ask(t.Context(), r, store.View{Record: granted[0], State: tenure.Led})
	var exit *cli.ExitError
	if !errors.As(err, &exit) || exit.Code != cli.ExitNo || !strings.Contains(stdout.String(), `"leader_node_id": "c"`) || !strings.Contains(stdout.String(), `"ended"`) {
		t.Errorf("%v, %s", err, &stdout)
	}
	if err := <-handed; err != nil {
		t.Error(err)
	}
}
