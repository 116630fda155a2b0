package kv

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// A token floor is at least as high as every token of the records that were removed under it. It is
// raised before a record is removed, and a grant to a group without a record takes effect only if
// the floor is still the one that its token is above.
type floorJSON struct {
	Format     int         `json:"format"`
	Deployment string      `json:"deployment"`
	Token      fence.Token `json:"token"`
}

// floorsPerPrefix bounds the floors of a prefix. The groups of a prefix are spread over them, because
// grants to new names conflict with removals under the same floor.
const floorsPerPrefix = 64

// floorKey returns the key of a group's token floor, or "" if its record is never removed.
func floorKey(group string) string {
	prefix, ok := store.Prefix(group)
	if !ok {
		return ""
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(group))
	return fmt.Sprintf("%s%s/%02x", floorAt, prefix, h.Sum32()%floorsPerPrefix)
}

// floorsOf reads the floors of groups that have no record. It returns the highest token, and the
// condition that the floor is unchanged, for each.
func (s *Store) floorsOf(ctx context.Context, records []record) (map[string]fence.Token, []Cond, error) {
	var keys []string
	for _, r := range records {
		if key := floorKey(r.Group); key != "" && r.Version == 0 && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil, nil, nil
	}
	slices.Sort(keys)
	before, epoch := map[string]fence.Token{}, s.baseline().epoch
	for _, key := range keys {
		before[key], _ = s.floors.get(key)
	}
	items, err := s.read(ctx, keys...)
	if err != nil {
		return nil, nil, err
	}
	floors := map[string]fence.Token{}
	var conds []Cond
	for _, i := range items {
		var j floorJSON
		if i.Version != 0 {
			if err := decode(i, &j); err != nil {
				return nil, nil, err
			}
		}
		s.mu.Lock()
		if j.Token < before[i.Key] && s.epoch == epoch {
			s.noteLoss("the token floor %q went back from %d to %d", i.Key, before[i.Key], j.Token)
		} else if s.epoch == epoch {
			s.raiseKnown(i.Key, j.Token)
		}
		s.mu.Unlock()
		floors[i.Key], conds = j.Token, append(conds, Cond{i.Key, i.Version})
	}
	return floors, conds, s.report(ctx)
}

// raiseKnown notes that a floor is at least as high as the token. s.mu is held.
func (s *Store) raiseKnown(key string, to fence.Token) {
	if known, _ := s.floors.get(key); to > known {
		s.floors.put(key, to)
	}
}

// retireTries bounds how often the floor may change during one Retire.
const retireTries = 20

var errFloor = fmt.Errorf("kv: the token floor keeps changing: %w", store.ErrBusy)

// Retire implements store.Retirer. It raises the floor before it removes the record, or in the same
// transaction. If it is interrupted in between, the floor is higher than it must be.
func (s *Store) Retire(ctx context.Context, seen store.Record) error {
	key := floorKey(seen.Group)
	if err := store.CheckGroup(seen.Group); err != nil {
		return err
	}
	if key == "" {
		return &store.ArgumentError{Field: "group", Value: seen.Group, Rule: `must be a prefix, "` + store.PrefixEnd + `" and a name, such as "tenants--42": other records are never removed`}
	}
	for range retireTries {
		m, err := s.grantMeta(ctx)
		if err != nil {
			return err
		}
		items, err := s.read(ctx, grantKey(seen.Group)) // before the record: see findDeleted
		if err != nil {
			return err
		}
		views, err := s.views(ctx, []string{seen.Group})
		if err != nil {
			return err
		}
		if v := views[0]; v.Version != seen.Version || v.State == tenure.Led {
			return &store.ConflictError{Current: views}
		}
		r, err := s.stored(ctx, seen.Group)
		if err != nil || r.stored == 0 {
			return err
		}
		if r.next != nil || r.Version != seen.Version {
			continue // a grant is being prepared
		}
		done, err := s.remove(ctx, m, key, items[0], r)
		if done || err != nil && !errors.Is(err, errMeta) {
			return err
		}
	}
	return errFloor
}

// stored reads a record as it is stored.
func (s *Store) stored(ctx context.Context, group string) (record, error) {
	items, err := s.read(ctx, recordKey(group))
	if err != nil {
		return record{}, err
	}
	return s.parsedRecords.get(items[0])
}

// remove removes a record if it and the floor are unchanged, with its history and its grant key.
func (s *Store) remove(ctx context.Context, m *meta, key string, grant Item, r record) (bool, error) {
	floors, conds, err := s.floorsOf(ctx, []record{{Record: store.Record{Group: r.Group}}})
	if err != nil {
		return false, err
	}
	var history []Write
	for n := uint64(0); n+store.TermsKept < min(r.count, historySlots+store.TermsKept); n++ {
		history = append(history, Write{Key: historyKey(r.Group, n), Quiet: true})
	}
	for part := range slices.Chunk(history, s.caps.Keys) {
		if _, err := s.commit(ctx, Txn{Then: part}); err != nil {
			return false, err
		}
	}
	var steps []step
	if r.Token > floors[key] {
		raised := encode(floorJSON{Format: Format, Deployment: s.deployment(), Token: r.Token})
		steps = append(steps, step{conds[0], Write{Key: key, Value: raised, Quiet: true}})
	}
	if grant.Version != 0 {
		steps = append(steps, step{Cond{grant.Key, grant.Version}, Write{Key: grant.Key, Quiet: true}})
	}
	steps = append(steps, step{Cond{recordKey(r.Group), r.stored}, Write{Key: recordKey(r.Group)}})
	c, err := s.run(ctx, plan{guard: []Cond{{metaKey, m.version}}, decide: steps, show: []string{metaKey}})
	if err != nil {
		return false, err
	}
	if !c.OK {
		if c.Items[0].Version != m.version {
			s.forgetMeta()
		}
		return false, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone(r)
	return true, nil
}

// gone notes that a record that may be removed is missing, so its floor is as high as its token.
// s.mu is held.
func (s *Store) gone(r record) {
	s.raiseKnown(floorKey(r.Group), r.Token)
	if known, _ := s.records.get(r.Group); known.stored <= r.stored {
		s.records.drop(r.Group)
	}
}
