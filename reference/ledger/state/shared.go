package state

import (
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/ledger/api"
)

// shared is the shared records that a group touches.
type shared struct {
	records table[sharedKey, record]
	// marks are those of the resources that have the names of the spaces.
	marks table[name, fence.Mark]
	// floor is the highest version of a deleted record. New records begin above it, so that no
	// version is used twice.
	floor uint64
	count uint64
	// counted: floor or count has changed.
	counted bool
}

type record struct {
	version uint64 // 0: there is none
	value   string
}

func keyOf(w api.SharedWrite) sharedKey { return sharedKey{w.Deployment, w.Space, w.Key} }

// Share makes a write to a shared record.
func (s *State) Share(w api.SharedWrite) Verdict {
	v := Verdict{Answer: api.Answer{AtMS: s.NowMS}}
	v.Version, v.Err = s.shared.apply(w, s.MaxShared)
	return v
}

func (s *shared) apply(w api.SharedWrite, most uint64) (version uint64, err error) {
	here := keyOf(w)
	if m := s.marks.rows[name(w.Space)]; m.Token > 0 && m.Deployment != w.Deployment {
		return 0, &fence.ForeignError{Stamp: fence.Stamp{Deployment: w.Deployment, Group: w.Space}, Mark: m}
	}
	row := s.records.rows[here]
	if w.Version != nil && *w.Version != row.version {
		return 0, &api.VersionError{Space: w.Space, Key: w.Key, Version: *w.Version, Current: row.version}
	}
	switch {
	case w.Delete && row.version == 0:
		return 0, api.ErrNotFound
	case w.Delete:
		s.floor, s.count, s.counted = max(s.floor, row.version), s.count-1, true
		s.records.set(here, record{})
		return row.version, nil
	case row.version == 0 && s.count >= most:
		return 0, api.ErrTooManyRecords
	case row.version == 0:
		row.version = s.floor
		s.count, s.counted = s.count+1, true
	}
	row.version++
	s.records.set(here, record{row.version, string(w.Value)})
	return row.version, nil
}
