package shard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// planPage is how many shards one attribute of a plan has. It keeps below store.MaxMetadata.
const planPage = 32

const markKey = "mark"

func planName(set string, page int) string { return setName(set) + "/plan/" + strconv.Itoa(page) }

// Place stores where a coordinator wants the shards of a set: a candidate for each shard that it
// names. It replaces what was placed before, and is weaker than Pin: a placed candidate is the first
// to own its shard while it lives, unless an operator has pinned the shard.
//
// The stamp is of the coordinator's own term. Each attribute that Place writes keeps the highest
// token, so the placement of a deposed coordinator is refused with a *fence.StaleError, or replaced
// by the newer coordinator, whose Place writes to every attribute of the plan. A failed Place may
// have been stored in part. Repeat it.
//
// Placement is advice. Whatever a coordinator writes, no shard has two owners.
func Place(ctx context.Context, st store.Store, set string, stamp fence.Stamp, placed map[int]string) error {
	rules, err := ReadRules(ctx, st, set)
	if err != nil {
		return err
	}
	for _, i := range slices.Sorted(maps.Keys(placed)) {
		switch {
		case i < 0 || i >= rules.Count:
			return &store.ArgumentError{Field: "shard", Value: i, Rule: fmt.Sprintf("the set %q has %d shards", set, rules.Count)}
		case !store.ValidName(placed[i]):
			return &store.ArgumentError{Field: "candidate", Value: placed[i], Rule: "must be the id of a candidate"}
		}
	}
	for page := range (rules.Count + planPage - 1) / planPage {
		values := map[string]string{}
		for i := page * planPage; i < (page+1)*planPage; i++ {
			if id := placed[i]; id != "" {
				values[strconv.Itoa(i)] = id
			}
		}
		if err := placePage(ctx, st, planName(set, page), stamp, values); err != nil {
			return fmt.Errorf("shard: placing the shards of %q: %w", set, err)
		}
	}
	return nil
}

// placePage writes one attribute of a plan, if the stamp is not stale.
func placePage(ctx context.Context, st store.Store, name string, stamp fence.Stamp, values map[string]string) error {
	for {
		a, err := st.Attributes(ctx, name)
		if err != nil {
			return err
		}
		var mark fence.Mark
		if text := a.Values[markKey]; text != "" {
			if err := json.Unmarshal([]byte(text), &mark); err != nil {
				return fmt.Errorf("reading the mark of %q: %w; delete the attribute if nothing else can", name, err)
			}
		}
		if mark, err = mark.Admit(stamp); err != nil {
			return err
		}
		text, err := json.Marshal(mark)
		if err != nil {
			return err
		}
		values[markKey] = string(text)
		if maps.Equal(a.Values, values) {
			return nil
		}
		a.Values = values
		if _, err := st.SetAttributes(ctx, a); !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
}
