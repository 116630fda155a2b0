package api

import "encoding/json"

// SharedRecord is a versioned value that belongs to no leader: whoever knows its
// version may replace it, and of two who do one succeeds. The version rises with
// each write and never comes back, not even when the record was deleted in between.
// Deployments have records of their own. A space that is named as a resource belongs to
// the deployment that writes to the resource.
type SharedRecord struct {
	Deployment string          `json:"deployment"`
	Space      string          `json:"space"`
	Key        string          `json:"key"`
	Version    uint64          `json:"version"`
	Value      json.RawMessage `json:"value"`
	UpdatedMS  int64           `json:"updated_ms"`
}

// SharedBody is the body that replaces a shared record.
type SharedBody struct {
	Value json.RawMessage `json:"value"`
}

// SharedAnswer is what became of a write to a shared record. Version is the one that
// it has now, or had when it was deleted.
type SharedAnswer struct {
	Deployment string `json:"deployment"`
	Space      string `json:"space"`
	Key        string `json:"key"`
	Version    uint64 `json:"version"`
	AtMS       int64  `json:"at_ms"`
}

// SharedWrite replaces or deletes a shared record.
type SharedWrite struct {
	Deployment string
	Space      string
	Key        string
	Value      json.RawMessage
	// Seen is what the writer has seen of the ledger. Optional.
	Seen Identity
	// Version, if given, is what the record must have now; 0: it must not exist.
	Version *uint64
	Delete  bool
}

// Validate refuses what the ledger could not keep.
func (w SharedWrite) Validate() error {
	if err := Name("deployment", w.Deployment); err != nil {
		return err
	}
	if err := Name("space", w.Space); err != nil {
		return err
	}
	if err := Name("key", w.Key); err != nil {
		return err
	}
	if w.Delete {
		return nil
	}
	return value("value", w.Value, false)
}
