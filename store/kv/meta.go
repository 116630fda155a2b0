package kv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/store"
)

// meta is the description of the deployment, as it was read.
type meta struct {
	metaJSON
	created, version uint64 // of the key
	index            uint64 // when it was read
}

var errMetaBusy = errors.New("kv: the deployment's description keeps changing")

// loadMeta reads the description of the deployment and writes it at first use. If the engine
// has lost data, loadMeta writes this into the description before it returns.
func (s *Store) loadMeta(ctx context.Context) (*meta, error) {
	for range 5 {
		before := s.baseline()
		inc, err := s.driver.Incarnation(ctx)
		if err != nil {
			return nil, err
		}
		base := s.baseline()
		r, err := s.commit(ctx, Txn{Read: []string{metaKey}})
		if err != nil {
			return nil, err
		}
		if r.Incarnation != "" && r.Incarnation != inc.ID {
			continue // it changed in between
		}
		if r.Index == 0 {
			s.checkAnswer(Result{Index: inc.Index}, before) // this engine's reads have no index
		}
		item := r.Items[0]
		if item.Version == 0 {
			if err := s.firstMeta(ctx, inc); err != nil {
				return nil, err
			}
			continue
		}
		m := &meta{created: item.Created, version: item.Version, index: cmp.Or(r.Index, inc.Index)}
		item.Key = s.caps.Prefix + item.Key
		if err := decode(item, &m.metaJSON); err != nil {
			return nil, err
		}
		if m.Format < Format {
			return nil, s.former(fmt.Sprintf("format %d, deployment %s, epoch %d", m.Format, m.Deployment, m.Epoch))
		}
		next, current := s.compareMeta(m, inc, base)
		switch {
		case !current:
		case next == nil:
			return m, nil
		default:
			if err := s.writeMeta(ctx, *next, m.version); err != nil {
				return nil, err
			}
		}
	}
	return nil, errMetaBusy
}

// former is the error for a prefix with keys of a former version, whose layout is another one.
func (s *Store) former(what string) error {
	return &store.ArgumentError{Field: "prefix", Value: s.caps.Prefix, Rule: "a former version of this program uses it (" + what +
		"): end the former programs, use another prefix under the same deployment name, and raise its epoch above the former one before candidates start, so that sinks accept the new tokens"}
}

// compareMeta compares the description with what is known. It returns the description that must
// replace it, or nil if it is right. If the description is older than what is known by now, it
// is not current, and the caller must read it again.
func (s *Store) compareMeta(m *meta, inc Incarnation, base baseline) (next *metaJSON, current bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.name == "" || m.Epoch > s.epoch:
		// The first answer, or an operator has raised the epoch.
		s.resetKnown(m)
	case s.epoch != base.epoch:
		return nil, false
	case m.version < base.meta:
		s.noteLoss("the deployment's description went back to an older one")
	case m.version < s.metaVersion:
		return nil, false
	case m.Epoch < s.epoch || m.Deployment != s.name:
		s.noteLoss("the deployment's description was replaced: deployment %s at epoch %d became %s at epoch %d", s.name, s.epoch, m.Deployment, m.Epoch)
	}
	s.metaVersion = max(s.metaVersion, m.version)
	fixed := m.metaJSON
	fixed.Incarnation = inc.ID
	if s.engine != inc.ID { // also if another client has recorded the new one
		if inc.Began == 0 || inc.Began < base.high {
			s.noteLoss("the engine changed from %s to %s: it was restored from a snapshot, or replaced", s.engine, inc.ID)
		}
		s.engine = inc.ID
	}
	if s.lost != "" && !m.Rewound {
		fixed.Rewound, fixed.Why = true, s.lost
	}
	if s.lost != "" {
		fixed.Epoch = max(m.Epoch, s.epoch)
	}
	if s.lost != "" && m.created > s.metaCreated {
		fixed.Deployment = s.name // sinks know the older name
	}
	if fixed != m.metaJSON {
		return &fixed, true
	}
	if s.meta = m; m.Rewound {
		s.meta = nil // read it again next time: the epoch may have been raised
	}
	return nil, true
}

// firstMeta writes the description of a deployment that has none. If there are other keys, or
// this client knows the deployment, the description was deleted: the new one keeps the old
// name, which sinks know, and says that data was lost.
func (s *Store) firstMeta(ctx context.Context, inc Incarnation) error {
	s.mu.Lock()
	m := metaJSON{Format: Format, Deployment: s.name, Epoch: s.epoch, Incarnation: inc.ID}
	s.mu.Unlock()
	for _, prefix := range []string{"election/", "electors/"} {
		if left, err := s.driver.List(ctx, prefix, "", 1); err != nil || len(left) > 0 {
			return cmp.Or(err, s.former("keys below "+prefix))
		}
	}
	lost := m.Deployment != ""
	for _, prefix := range []string{floorAt, grantAt, recordAt, sessionAt} {
		left, err := s.list(ctx, prefix)
		if err != nil {
			return err
		}
		for _, i := range left {
			var named struct {
				Deployment string      `json:"deployment"`
				Epoch      uint64      `json:"epoch"`
				Token      fence.Token `json:"token"`
			}
			_ = decode(i, &named) // ignored: of a newer format the name is unknown
			m.Deployment = cmp.Or(m.Deployment, named.Deployment)
			m.Epoch = max(m.Epoch, named.Epoch, named.Token.Epoch())
			lost = true
		}
	}
	if lost {
		m.Rewound, m.Why = true, "the deployment's description "+s.caps.Prefix+metaKey+" was deleted"
	}
	if m.Deployment == "" {
		m.Deployment = cmp.Or(s.cfg.Deployment, "d"+strings.ToLower(s.cfg.random()))
	}
	return s.writeMeta(ctx, m, 0)
}

// writeMeta replaces the version seen. If another client was faster, it returns no error: the
// caller reads the description again.
func (s *Store) writeMeta(ctx context.Context, m metaJSON, seen uint64) error {
	_, err := s.commit(ctx, Txn{If: []Cond{{metaKey, seen}}, Then: []Write{{Key: metaKey, Value: encode(m)}}})
	return err
}

// grantMeta returns the description, or an error if the engine must not grant anything.
func (s *Store) grantMeta(ctx context.Context) (*meta, error) {
	s.mu.Lock()
	m := s.meta
	s.mu.Unlock()
	if m == nil {
		var err error
		if m, err = s.loadMeta(ctx); err != nil {
			return nil, err
		}
	}
	if m.Rewound && !s.cfg.plant.Has(plant.GrantRewound) {
		return m, fmt.Errorf("kv: %s: %w", m.Why, store.ErrRewound)
	}
	return m, nil
}

func (s *Store) forgetMeta() {
	s.mu.Lock()
	s.meta = nil
	s.mu.Unlock()
}

// checkMeta returns an error if the description that was read says that the engine lost data.
func (s *Store) checkMeta(ctx context.Context, read Item) error {
	s.mu.Lock()
	if s.meta != nil && read.Version != s.meta.version {
		s.meta = nil
	}
	known := s.meta != nil
	s.mu.Unlock()
	if known {
		return nil
	}
	_, err := s.grantMeta(ctx)
	return err
}

// Meta implements store.Store.
func (s *Store) Meta(ctx context.Context) (store.Meta, error) {
	s.forgetMeta()
	m, err := s.loadMeta(ctx)
	if err != nil {
		return store.Meta{}, err
	}
	return m.public(), nil
}

func (m *meta) public() store.Meta {
	return store.Meta{Deployment: m.Deployment, Epoch: m.Epoch, Index: m.index, Rewound: m.Rewound, Why: m.Why}
}

// RaiseEpoch implements store.Store. It cannot know epochs that a restore removed: the operator
// must choose one above every token that any sink has seen.
func (s *Store) RaiseEpoch(ctx context.Context, to uint64) (store.Meta, error) {
	for range 5 {
		m, err := s.loadMeta(ctx)
		if err != nil {
			return store.Meta{}, err
		}
		s.mu.Lock()
		above := max(m.Epoch, s.epoch)
		s.mu.Unlock()
		if err := store.CheckEpoch(to, above); err != nil {
			return store.Meta{}, err
		}
		raised := m.metaJSON
		raised.Epoch, raised.Rewound, raised.Why = to, false, ""
		if err := s.writeMeta(ctx, raised, m.version); err != nil {
			return store.Meta{}, err
		}
		if m, err = s.loadMeta(ctx); err != nil {
			return store.Meta{}, err
		}
		if m.Epoch == to {
			return m.public(), nil
		}
	}
	return store.Meta{}, errMetaBusy
}

// Suspect implements store.Store.
func (s *Store) Suspect(ctx context.Context, group string, seen fence.Token) error {
	if err := errors.Join(store.CheckGroup(group), store.CheckToken(seen)); err != nil {
		return err
	}
	for range 5 {
		views, err := s.views(ctx, []string{group})
		if err != nil {
			return err
		}
		v := views[0]
		floors, _, err := s.floorsOf(ctx, []record{{Record: v.Record}})
		if err != nil || floors[floorKey(group)] >= seen { // granted, and removed since
			return err
		}
		m, err := s.loadMeta(ctx)
		if err != nil || m.Rewound || m.Epoch > seen.Epoch() || v.Token > seen {
			return err
		}
		marked := m.metaJSON
		marked.Rewound = true
		marked.Why = fmt.Sprintf("a sink of group %q has seen token %d, which was not granted before token %d", group, seen, v.Token)
		if err := s.writeMeta(ctx, marked, m.version); err != nil {
			return err
		}
		s.forgetMeta()
	}
	return errMetaBusy
}
