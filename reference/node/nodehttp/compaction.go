package nodehttp

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/compactor"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/reference/node"
	"github.com/tenurehq/tenure/server/httpapi"
)

func (n *handler) postCompaction(w http.ResponseWriter, r *http.Request, l *node.Leading) (any, error) {
	var t api.CompactionTask
	if err := httpapi.ReadJSON(w, r, maxBody, true, &t); err != nil {
		return nil, err
	}
	from, err := compactor.Begin(compactor.Task{Seed: t.Seed, Bytes: t.Bytes, SegmentBytes: t.SegmentBytes})
	if err != nil || t.Rate < 0 {
		return nil, &ledgerapi.RequestError{Field: "compaction", Value: fmt.Sprintf("%+v", t), Rule: errors.Join(err, errors.New("sizes and rates are positive")).Error()}
	}
	cursor, err := l.Compaction.Start(r.Context(), from, t.Rate)
	switch {
	case errors.Is(err, compactor.ErrCompacting):
		return nil, httpapi.Refuse(http.StatusConflict, "compaction_under_way", "a compaction is under way: see GET /compaction")
	case err != nil:
		return nil, n.writeError(err)
	}
	l.Found()
	return api.Compaction{Here: true, Token: l.Term.Token(), Cursor: cursor}, nil
}

func (n *handler) getCompaction(_ http.ResponseWriter, r *http.Request) (any, error) {
	found, err := n.Ledger.Checkpoint(r.Context(), n.Config.Group, compactor.Checkpoint)
	if err != nil {
		return nil, err
	}
	cursor, err := compactor.Parse(found.Value)
	if err != nil {
		return nil, err
	}
	a := api.Compaction{Finished: cursor.Finished(), Token: found.Token, Cursor: found.Value}
	if l := n.Leading(); l != nil {
		if now := l.Compaction.Now(); now != nil {
			a.Here = true
			a.Cursor, err = json.Marshal(now)
		}
	}
	return a, err
}
