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

// meta describes the deployment, as its key was read.
type meta struct {
	metaJSON
	created, version uint64 // of the key
	index            uint64 // when it was read
}

var errMetaBusy = errors.New("kv: the deployment's description keeps changing")

// loadMeta reads the description of the deployment and writes it at first use. If the
// engine has lost data, that is written into it before anybody relies on what was read.
func (s *Store) loadMeta(ctx context.Context) (*meta, error) {
	for range 5 {
		before := s.ask()
		inc, err := s.driver.Incarnation(ctx)
		if err != nil {
			return nil, err
		}
		asked := s.ask()
		r, err := s.commit(ctx, Txn{Read: []string{metaKey}})
		if err != nil {
			return nil, err
		}
		if r.Incarnation != "" && r.Incarnation != inc.ID {
			continue // it changed in between
		}
		if r.Index == 0 {
			s.heard(Result{Index: inc.Index}, before) // reads have none in this engine
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
		next, current := s.compareMeta(m, inc, asked)
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

// former refuses what a former version wrote: its layout is another one.
func (s *Store) former(what string) error {
	return &store.ArgumentError{Field: "prefix", Value: s.caps.Prefix, Rule: "a former version of this program uses it (" + what +
		"): end the former programs, use another prefix under the same deployment name, and raise its epoch above the former one before candidates start, so that sinks accept the new tokens"}
}

// compareMeta holds the description against what is known. It returns what the description must
// say instead, nil if it is right. A description that is older than what is known by now is
// not current: read it again.
func (s *Store) compareMeta(m *meta, inc Incarnation, asked asked) (next *metaJSON, current bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.name == "" || m.Epoch > s.epoch:
		// The first answer, or an operator has raised the epoch.
		s.forgets(m)
	case s.epoch != asked.epoch:
		return nil, false
	case m.version < asked.meta:
		s.proves("the deployment's description went back to an older one")
	case m.version < s.metaVersion:
		return nil, false
	case m.Epoch < s.epoch || m.Deployment != s.name:
		s.proves("the deployment's description was replaced: deployment %s at epoch %d became %s at epoch %d", s.name, s.epoch, m.Deployment, m.Epoch)
	}
	s.metaVersion = max(s.metaVersion, m.version)
	mend := m.metaJSON
	mend.Incarnation = inc.ID
	if s.engine != inc.ID { // also if another client has recorded the new one
		if inc.Began == 0 || inc.Began < asked.high {
			s.proves("the engine changed from %s to %s: it was restored from a snapshot, or replaced", s.engine, inc.ID)
		}
		s.engine = inc.ID
	}
	if s.lost != "" && !m.Rewound {
		mend.Rewound, mend.Why = true, s.lost
	}
	if s.lost != "" {
		mend.Epoch = max(m.Epoch, s.epoch)
	}
	if s.lost != "" && m.created > s.metaCreated {
		mend.Deployment = s.name // sinks know the older one
	}
	if mend != m.metaJSON {
		return &mend, true
	}
	if s.meta = m; m.Rewound {
		s.meta = nil // ask again next time: the epoch may have been raised
	}
	return nil, true
}

// firstMeta describes a deployment that has no description. If anything else is there, or
// this client knows the deployment, the description was deleted: the new one has the old
// name, which sinks know, and says so.
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
	for _, prefix := range []string{grantAt, recordAt, sessionAt} {
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
			_ = decode(i, &named) // a newer format is here too: then its name is unknown
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

// writeMeta writes from the version seen. That somebody else was faster is no error: the
// caller reads again.
func (s *Store) writeMeta(ctx context.Context, m metaJSON, seen uint64) error {
	_, err := s.commit(ctx, Txn{If: []Cond{{metaKey, seen}}, Then: []Write{{Key: metaKey, Value: encode(m)}}})
	return err
}

// fresh returns the description if grants may be made under it.
func (s *Store) fresh(ctx context.Context) (*meta, error) {
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

// stands checks the description as a keep-alive has read it.
func (s *Store) stands(ctx context.Context, read Item) error {
	s.mu.Lock()
	if s.meta != nil && read.Version != s.meta.version {
		s.meta = nil
	}
	known := s.meta != nil
	s.mu.Unlock()
	if known {
		return nil
	}
	_, err := s.fresh(ctx)
	return err
}

// Meta implements store.Store.
func (s *Store) Meta(ctx context.Context) (store.Meta, error) {
	s.forgetMeta()
	m, err := s.loadMeta(ctx)
	if err != nil {
		return store.Meta{}, err
	}
	return m.lease(), nil
}

func (m *meta) lease() store.Meta {
	return store.Meta{Deployment: m.Deployment, Epoch: m.Epoch, Index: m.index, Rewound: m.Rewound, Why: m.Why}
}

// RaiseEpoch implements store.Store. It cannot know epochs that a restore took back: raise
// above every token that any sink has seen.
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
			return m.lease(), nil
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
