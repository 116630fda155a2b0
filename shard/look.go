package shard

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/internal/placement"
	"github.com/tenurehq/tenure/internal/policy"
	"github.com/tenurehq/tenure/store"
)

// Overview is what an observer sees of a set.
type Overview struct {
	Count  int   // 0: no process has run the set
	Vacant []int // shards without an owner
	// Moving is how many shards should be owned by another candidate. They move soon, unless they have
	// moved just now or their owner disagrees.
	Moving int
	// Imbalance is the largest Share of an owner. 0: no shard has an owner.
	Imbalance float64
	Owners    []OwnerOf // by candidate
}

// OwnerOf is one candidate that owns shards.
type OwnerOf struct {
	Candidate string
	Shards    []int
	// Share is the part of the owned shards, in proportion to that of its weight: 1 is exactly its part.
	Share  float64
	Weight float64
	Pinned int // of its shards, those that are pinned or placed here
	Moving int // of its shards, those that should be owned by another candidate
}

// Look reads who owns the shards of a set.
func Look(ctx context.Context, st store.Store, set string) (Overview, error) {
	rules, err := ReadRules(ctx, st, set)
	o := Overview{Count: rules.Count}
	if err != nil || rules.Count == 0 {
		return o, err
	}
	cordoned, err := cordons(ctx, st)
	if err != nil {
		return o, err
	}
	scope, page := store.Scope{set + "-*"}, store.Page{}
	var living []store.Session
	for {
		some, err := st.Sessions(ctx, scope, page)
		if err != nil {
			return o, err
		}
		living = append(living, some...)
		if len(some) < store.MaxPage {
			break
		}
		page.After = string(some[len(some)-1].ID)
	}
	owners := map[int]string{}
	for page = (store.Page{}); ; {
		some, err := st.Groups(ctx, scope, page)
		if err != nil {
			return o, err
		}
		for _, v := range some {
			if of, i := Parse(v.Group); of == set && i >= 0 && v.State == tenure.Led {
				owners[i] = v.Candidate.ID
			}
		}
		if len(some) < store.MaxPage {
			break
		}
		page.After = some[len(some)-1].Group
	}
	o.count(set, rules.of(cordoned), owners, living)
	return o, nil
}

func (o *Overview) count(set string, rules *placement.Rules, owners map[int]string, living []store.Session) {
	by := map[string]*OwnerOf{}
	for i := range o.Count {
		id := owners[i]
		if id == "" {
			o.Vacant = append(o.Vacant, i)
			continue
		}
		owner := by[id]
		if owner == nil {
			owner = &OwnerOf{Candidate: id, Weight: cmp.Or(rules.Weights[id], 1)}
			by[id] = owner
		}
		owner.Shards = append(owner.Shards, i)
		if rules.Pins[i] == id {
			owner.Pinned++
		}
		if best := rules.First(set, i, id, living); best != "" && best != id {
			owner.Moving++
			o.Moving++
		}
	}
	weights := 0.0
	for _, owner := range by {
		weights += owner.Weight
	}
	for _, id := range slices.Sorted(maps.Keys(by)) {
		owner := by[id]
		owner.Share = float64(len(owner.Shards)) * weights / (float64(o.Count-len(o.Vacant)) * owner.Weight)
		o.Imbalance = max(o.Imbalance, owner.Share)
		o.Owners = append(o.Owners, *owner)
	}
}

// cordons reads which candidates are cordoned.
func cordons(ctx context.Context, st store.Store) (map[string]bool, error) {
	cordoned := map[string]bool{}
	err := each(ctx, st, policy.Node(""), func(a store.Attributes) {
		id := strings.TrimPrefix(a.Name, policy.Node(""))
		if (policy.Claim{Node: id}).Cordon(a.Values) != nil {
			cordoned[id] = true
		}
	})
	return cordoned, err
}
