package shard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/tenurehq/tenure/internal/placement"
	"github.com/tenurehq/tenure/store"
)

// Attributes of a set: "shard/SET" has the count, "shard/SET/weight/CANDIDATE" a weight,
// "shard/SET/pin/INDEX" a candidate, "shard/SET/plan/PAGE" the candidates that a coordinator has placed, and "shard/SET/full/CANDIDATE" the session of a process that
// owns as many shards as it may.
const (
	countKey     = "count"
	weightKey    = "weight"
	candidateKey = "candidate"
	sessionKey   = "session"
)

func setName(set string) string { return "shard/" + set }

// SetOf is the set of an attribute "shard/SET…".
func SetOf(attribute string) string {
	set, _, _ := strings.Cut(strings.TrimPrefix(attribute, "shard/"), "/")
	return set
}

func weightName(set, candidate string) string { return setName(set) + "/weight/" + candidate }

func fullName(set, candidate string) string { return setName(set) + "/full/" + candidate }

func pinName(set string, index int) string { return setName(set) + "/pin/" + strconv.Itoa(index) }

const (
	// MaxCount is how many shards a set can have.
	MaxCount = 100_000
	// MaxWeight of a candidate.
	MaxWeight = 1000
)

// Rules are the stored settings of a set.
type Rules struct {
	Count   int                // 0: no process has run the set yet
	Weights map[string]float64 // by candidate; 1 for others
	Pins    map[int]string     // candidates by shard, of operators and of the coordinator

	full map[string]store.SessionID // sessions that own Max shards, by candidate
}

// ReadRules reads the rules of a set.
func ReadRules(ctx context.Context, st store.Store, set string) (Rules, error) {
	r := Rules{Weights: map[string]float64{}, Pins: map[int]string{}, full: map[string]store.SessionID{}}
	main, err := st.Attributes(ctx, setName(set))
	if err != nil {
		return r, err
	}
	r.Count, _ = strconv.Atoi(main.Values[countKey])
	placed := map[int]string{}
	err = each(ctx, st, setName(set)+"/", func(a store.Attributes) {
		kind, of, _ := strings.Cut(strings.TrimPrefix(a.Name, setName(set)+"/"), "/")
		index, notNumber := strconv.Atoi(of)
		weight, notWeight := strconv.Atoi(a.Values[weightKey])
		switch {
		case kind == "weight" && notWeight == nil && weight >= 1 && weight <= MaxWeight:
			r.Weights[of] = float64(weight)
		case kind == "pin" && notNumber == nil && a.Values[candidateKey] != "":
			r.Pins[index] = a.Values[candidateKey]
		case kind == "plan":
			for index, id := range a.Values {
				if i, err := strconv.Atoi(index); err == nil {
					placed[i] = id
				}
			}
		case kind == "full":
			r.full[of] = store.SessionID(a.Values[sessionKey])
		}
	})
	maps.Copy(placed, r.Pins) // an operator's pin is stronger
	r.Pins = placed
	return r, err
}

// each reads all attributes whose names begin with the prefix.
func each(ctx context.Context, st store.Store, prefix string, do func(store.Attributes)) error {
	page := store.Page{}
	for {
		all, err := st.ListAttributes(ctx, prefix, page)
		if err != nil {
			return err
		}
		for _, a := range all {
			do(a)
			page.After = a.Name
		}
		if len(all) < store.MaxPage {
			return nil
		}
	}
}

// of is the rules as the machine takes them.
func (r Rules) of(cordoned map[string]bool) *placement.Rules {
	return &placement.Rules{Weights: r.Weights, Pins: r.Pins, Full: r.full, Cordoned: cordoned}
}

// Weigh sets the weight of a candidate in a set. Its share of the shards is in proportion; the
// default weight is 1.
func Weigh(ctx context.Context, st store.Store, set, candidate string, weight int) error {
	switch {
	case weight < 1 || weight > MaxWeight:
		return &store.ArgumentError{Field: "weight", Value: weight, Rule: fmt.Sprintf("from 1 to %d", MaxWeight)}
	case !store.ValidName(candidate):
		return &store.ArgumentError{Field: "candidate", Value: candidate, Rule: "must be the id of a candidate"}
	}
	return set1(ctx, st, weightName(set, candidate), weightKey, strconv.Itoa(weight))
}

// Pin makes a candidate the first to own a shard while it lives. "" removes the pin.
func Pin(ctx context.Context, st store.Store, set string, index int, candidate string) error {
	r, err := ReadRules(ctx, st, set)
	switch {
	case err != nil:
		return err
	case index < 0 || index >= r.Count:
		return &store.ArgumentError{Field: "shard", Value: index, Rule: fmt.Sprintf("the set %q has %d shards", set, r.Count)}
	case candidate != "" && !store.ValidName(candidate):
		return &store.ArgumentError{Field: "candidate", Value: candidate, Rule: "must be the id of a candidate"}
	}
	return set1(ctx, st, pinName(set, index), candidateKey, candidate)
}

// set1 writes one attribute, whatever its version. An empty value removes it.
func set1(ctx context.Context, st store.Store, name, key, value string) error {
	for {
		a, err := st.Attributes(ctx, name)
		if err != nil {
			return err
		}
		if a.Values[key] == value {
			return nil
		}
		a.Values = map[string]string{key: value}
		if value == "" {
			a.Values = nil
		}
		if _, err := st.SetAttributes(ctx, a); !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
}
