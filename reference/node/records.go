package node

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/tenurehq/tenure/reference/api"
	ledgerapi "github.com/tenurehq/tenure/reference/ledger/api"
	"github.com/tenurehq/tenure/server/httpapi"
)

func etag(version uint64) string { return strconv.Quote(strconv.FormatUint(version, 10)) }

// wanted is the version that the caller says a record has; nil if it does not care.
func wanted(r *http.Request) (*uint64, error) {
	match, none := r.Header.Get("If-Match"), r.Header.Get("If-None-Match")
	bad := func(field, value, rule string) error {
		return &ledgerapi.RequestError{Field: field, Value: fmt.Sprintf("%.40s", value), Rule: rule}
	}
	switch {
	case match != "" && none != "":
		return nil, bad("If-Match", match, "not together with If-None-Match")
	case none == "*":
		return new(uint64), nil
	case none != "":
		return nil, bad("If-None-Match", none, "* is all that a write can ask for")
	case match == "":
		return nil, nil
	}
	text, ok := strings.CutPrefix(match, `"`)
	text, ok2 := strings.CutSuffix(text, `"`)
	version, err := strconv.ParseUint(text, 10, 64)
	if !ok || !ok2 || err != nil || version == 0 {
		return nil, bad("If-Match", match, `the ETag of the record, such as "7"`)
	}
	return &version, nil
}

// Records need no leader: they are safe by their version. Any node serves them straight
// from the ledger, also while nobody leads.

func (n *Node) getRecord(w http.ResponseWriter, r *http.Request) {
	deployment, err := n.deployment(r.Context())
	if err != nil {
		n.fail(w, err)
		return
	}
	rec, err := n.ledger.Shared(r.Context(), deployment, n.cfg.Group, r.PathValue("key"))
	if err != nil {
		n.fail(w, err)
		return
	}
	w.Header().Set("ETag", etag(rec.Version))
	if r.Header.Get("If-None-Match") == etag(rec.Version) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	httpapi.WriteJSON(w, http.StatusOK, api.Record{Key: rec.Key, Version: rec.Version, Value: rec.Value, UpdatedMS: rec.UpdatedMS})
}

func (n *Node) putRecord(w http.ResponseWriter, r *http.Request) {
	version, err := wanted(r)
	if err != nil {
		n.fail(w, err)
		return
	}
	var value json.RawMessage
	if err := httpapi.ReadJSON(w, r, maxBody, false, &value); err != nil {
		n.fail(w, err)
		return
	}
	key := r.PathValue("key")
	deployment, err := n.deployment(r.Context())
	if err != nil {
		n.fail(w, err)
		return
	}
	now, err := n.ledger.PutShared(r.Context(), deployment, n.cfg.Group, key, value, version)
	if err != nil {
		n.fail(w, err)
		return
	}
	w.Header().Set("ETag", etag(now))
	httpapi.WriteJSON(w, http.StatusOK, api.Record{Key: key, Version: now})
}

func (n *Node) deleteRecord(w http.ResponseWriter, r *http.Request) {
	version, err := wanted(r)
	if err != nil {
		n.fail(w, err)
		return
	}
	key := r.PathValue("key")
	deployment, err := n.deployment(r.Context())
	if err != nil {
		n.fail(w, err)
		return
	}
	if err := n.ledger.DeleteShared(r.Context(), deployment, n.cfg.Group, key, version); err != nil {
		n.fail(w, err)
		return
	}
	httpapi.WriteJSON(w, http.StatusOK, api.Record{Key: key})
}
