package nodehttp

import (
	"encoding/json"
	"net/http"

	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/server/httpapi"
)

// Records need no leader: their version protects them. Any node serves them from the ledger,
// also while nobody leads.

func (n *handler) getRecord(w http.ResponseWriter, r *http.Request) (any, error) {
	deployment, err := n.Deployment(r.Context())
	if err != nil {
		return nil, err
	}
	rec, err := n.Ledger.Shared(r.Context(), deployment, n.Config.Group, r.PathValue("key"))
	if err != nil {
		return nil, err
	}
	tag := ledgerapi.ETag(rec.Version)
	w.Header().Set("ETag", tag)
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return nil, nil
	}
	return api.Record{Key: rec.Key, Version: rec.Version, Value: rec.Value, UpdatedMS: rec.UpdatedMS}, nil
}

func (n *handler) putRecord(w http.ResponseWriter, r *http.Request) (any, error) {
	version, err := ledgerapi.Precondition(r.Header)
	if err != nil {
		return nil, err
	}
	var value json.RawMessage
	if err := httpapi.ReadJSON(w, r, maxBody, false, &value); err != nil {
		return nil, err
	}
	deployment, err := n.Deployment(r.Context())
	if err != nil {
		return nil, err
	}
	now, err := n.Ledger.PutShared(r.Context(), deployment, n.Config.Group, r.PathValue("key"), value, version)
	if err == nil {
		w.Header().Set("ETag", ledgerapi.ETag(now))
	}
	return api.Record{Key: r.PathValue("key"), Version: now}, err
}

func (n *handler) deleteRecord(_ http.ResponseWriter, r *http.Request) (any, error) {
	version, err := ledgerapi.Precondition(r.Header)
	if err != nil {
		return nil, err
	}
	deployment, err := n.Deployment(r.Context())
	if err != nil {
		return nil, err
	}
	return api.Record{Key: r.PathValue("key")}, n.Ledger.DeleteShared(r.Context(), deployment, n.Config.Group, r.PathValue("key"), version)
}
