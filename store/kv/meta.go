package kv

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/internal/plant"
	"github.com/tenurehq/tenure/lease"
)

// meta describes the deployment, with the version of its key.
type meta struct {
	metaJSON
	version uint64
	index   uint64
}

var errMetaBusy = errors.New("kv: the deployment's description keeps changing")

// loadMeta reads the description of the deployment, writes it at first use, and marks it
// rewound when something proves that the engine lost data.
func (s *Store) loadMeta(ctx context.Context) (*meta, error) {
	for range 5 {
		inc, err := s.driver.Incarnation(ctx)
		if err != nil {
			return nil, err
		}
		r, err := s.commit(ctx, Txn{Read: []string{metaKey}})
		if err != nil {
			return nil, err
		}
		item := r.Items[0]
		if item.Version == 0 {
			if err := s.firstMeta(ctx, inc); err != nil {
				return nil, err
			}
			continue
		}
		m := &meta{version: item.Version, index: r.Index}
		if err := decode(item, &m.metaJSON); err != nil {
			return nil, err
		}
		s.mu.Lock()
		if s.name == "" || m.Epoch > s.highEpoch {
			// New here, or an operator has raised the epoch since.
			s.forgets(r.Index, m.Epoch)
		}
		if s.name == "" {
			s.name = m.Deployment
		}
		why := s.lost
		if why == "" && m.Incarnation != inc.ID && (inc.Began == 0 || inc.Began < s.high) {
			why = fmt.Sprintf("the engine's data is of incarnation %s, not of %s", inc.ID, m.Incarnation)
		}
		moved := m.Incarnation != inc.ID
		if m.Rewound || why == "" && !moved {
			s.meta = m
			s.mu.Unlock()
			return m, nil
		}
		s.mu.Unlock()
		next := m.metaJSON
		next.Incarnation = inc.ID
		if why != "" {
			next.Rewound, next.Why = true, why
		}
		if err := s.writeMeta(ctx, next, m.version); err != nil {
			return nil, err
		}
	}
	return nil, errMetaBusy
}

// firstMeta describes a deployment that has no description. If anything else is there, the
// description was deleted: its name is taken from what is left, and it is rewound.
func (s *Store) firstMeta(ctx context.Context, inc Incarnation) error {
	m := metaJSON{Format: Format, Deployment: s.deployment(), Incarnation: inc.ID}
	if m.Deployment != "" {
		m.Rewound, m.Why = true, "the deployment's description is gone"
	}
	for _, prefix := range []string{recordAt, sessionAt} {
		left, err := s.driver.List(ctx, prefix, "", 1)
		if err != nil {
			return err
		}
		for _, i := range left {
			var named struct {
				Deployment string `json:"deployment"`
			}
			_ = decode(i, &named) // a newer format is here too: then its name is unknown
			m.Rewound, m.Why = true, "the deployment's description is gone"
			if m.Deployment == "" {
				m.Deployment = named.Deployment
			}
		}
	}
	if m.Deployment == "" {
		m.Deployment = s.cfg.Deployment
	}
	if m.Deployment == "" {
		m.Deployment = "d" + strings.ToLower(s.cfg.random())
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
		s.forgetMeta() // ask again next time: the epoch may have been raised
		return m, fmt.Errorf("kv: %s: %w", m.Why, lease.ErrRewound)
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

// Meta implements lease.Store.
func (s *Store) Meta(ctx context.Context) (lease.Meta, error) {
	s.forgetMeta()
	m, err := s.loadMeta(ctx)
	if err != nil {
		return lease.Meta{}, err
	}
	return m.lease(), nil
}

func (m *meta) lease() lease.Meta {
	return lease.Meta{Deployment: m.Deployment, Epoch: m.Epoch, Index: m.index, Rewound: m.Rewound, Why: m.Why}
}

// RaiseEpoch implements lease.Store. It cannot know epochs that a restore took back: raise
// above every token that any sink has seen.
func (s *Store) RaiseEpoch(ctx context.Context, to uint64) (lease.Meta, error) {
	for range 5 {
		m, err := s.loadMeta(ctx)
		if err != nil {
			return lease.Meta{}, err
		}
		s.mu.Lock()
		above := max(m.Epoch, s.highEpoch)
		s.mu.Unlock()
		if err := lease.CheckEpoch(to, above); err != nil {
			return lease.Meta{}, err
		}
		raised := m.metaJSON
		raised.Epoch, raised.Rewound, raised.Why = to, false, ""
		if err := s.writeMeta(ctx, raised, m.version); err != nil {
			return lease.Meta{}, err
		}
		if m, err = s.loadMeta(ctx); err != nil {
			return lease.Meta{}, err
		}
		if m.Epoch == to {
			return m.lease(), nil
		}
	}
	return lease.Meta{}, errMetaBusy
}

// Suspect implements lease.Store.
func (s *Store) Suspect(ctx context.Context, group string, seen fence.Token) error {
	if err := errors.Join(lease.CheckGroup(group), lease.CheckToken(seen)); err != nil {
		return err
	}
	for range 5 {
		v, err := s.Read(ctx, group)
		if err != nil {
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
