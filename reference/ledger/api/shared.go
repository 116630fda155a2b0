package api

import (
	"cmp"
	"encoding/json"
)

// SharedRecord is a versioned value that needs no leader: of two writers that know its version
// one succeeds. The version rises with each write and is never used again, even after the record
// was deleted. Each deployment has its own records. A space with the name of a resource belongs
// to the deployment that writes to the resource.
type SharedRecord struct {
	Deployment string          `json:"deployment"`
	Space      string          `json:"space"`
	Key        string          `json:"key"`
	Version    uint64          `json:"version"`
	Value      json.RawMessage `json:"value"`
	UpdatedMS  int64           `json:"updated_ms"`
}

// SharedAnswer is the outcome of a write to a shared record. Version is its version now, or when
// it was deleted.
type SharedAnswer struct {
	Deployment string `json:"deployment"`
	Space      string `json:"space"`
	Key        string `json:"key"`
	Version    uint64 `json:"version"`
	AtMS       int64  `json:"at_ms"`
}

// SharedWrite replaces or deletes a shared record. As JSON it is the body of a request.
type SharedWrite struct {
	Deployment string          `json:"-"`
	Space      string          `json:"-"`
	Key        string          `json:"-"`
	Value      json.RawMessage `json:"value"`
	// Seen is the identity of the ledger that the writer has seen. Optional.
	Seen Identity `json:"-"`
	// Version, if given, is the version that the record must have; 0: it must not exist.
	Version *uint64 `json:"-"`
	Delete  bool    `json:"-"`
}

// Validate refuses what the ledger cannot store.
func (w SharedWrite) Validate() error {
	if err := cmp.Or(Name("deployment", w.Deployment), Name("space", w.Space), Name("key", w.Key)); err != nil {
		return err
	}
	if w.Delete {
		return nil
	}
	return value("value", w.Value, false)
}
