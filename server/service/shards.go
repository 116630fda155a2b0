package service

import (
	"math"
	"net/http"

	"github.com/tenurehq/tenure/shard"
	"github.com/tenurehq/tenure/store"
)

// Shards is who owns the shards of a set.
type Shards struct {
	Set       string       `json:"set"`
	Count     int          `json:"count" doc:"0: no process has run the set"`
	Vacant    []int        `json:"vacant" doc:"shards without an owner"`
	Moving    int          `json:"moving" doc:"shards that another node should own: they move soon"`
	Imbalance int          `json:"imbalance_percent" doc:"the largest share of an owner"`
	Owners    []ShardOwner `json:"owners"`
}

// ShardOwner is a node that owns shards.
type ShardOwner struct {
	NodeID string `json:"node_id"`
	Shards []int  `json:"shards"`
	Share  int    `json:"share_percent" doc:"its part of the owned shards, in proportion to that of its weight: 100 is exactly its part"`
	Weight int    `json:"weight"`
	Pinned int    `json:"pinned" doc:"of its shards, those that were pinned or placed here"`
	Moving int    `json:"moving" doc:"of its shards, those that another node should own"`
}

// setGroups is what a caller must be allowed to observe: all groups of the set.
func setGroups(r *http.Request) []string { return []string{r.PathValue("set") + "-"} }

func (s *Service) shards(_ http.ResponseWriter, r *http.Request) (any, error) {
	set := r.PathValue("set")
	if err := store.CheckGroup(set); err != nil {
		return nil, err
	}
	look, err := shard.Look(r.Context(), s.store, set)
	if err != nil {
		return nil, err
	}
	percent := func(share float64) int { return int(math.Round(100 * share)) }
	out := Shards{Set: set, Count: look.Count, Vacant: append([]int{}, look.Vacant...), Moving: look.Moving, Imbalance: percent(look.Imbalance), Owners: []ShardOwner{}}
	for _, o := range look.Owners {
		out.Owners = append(out.Owners, ShardOwner{o.Candidate, o.Shards, percent(o.Share), int(o.Weight), o.Pinned, o.Moving})
	}
	return out, nil
}
