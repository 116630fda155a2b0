package operator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/tenurehq/tenure/internal/policy"
	"github.com/tenurehq/tenure/lease"
)

const (
	// registerPrefix and a number name the attributes that list the declared groups.
	registerPrefix = "service/groups-"
	// registerPages bounds the list. A page holds at least 60 names, and mostly 150.
	registerPages = 512
	// registerReads is how many pages are read at once.
	registerReads = 16
)

// ErrRegisterFull: as many groups are declared as can be listed.
var ErrRegisterFull = fmt.Errorf("as many groups are declared here as can be listed (delete some, or let campaigns create them): %w", lease.ErrBusy)

// Register is an engine with a list of the declared groups: a store lists what was ever
// led, and what was only declared stands here. A name may stand in it without a policy (its
// declaration failed, or it was deleted), so what it says is compared with the policy; a
// policy that was written through a Register has its name in it.
type Register struct {
	lease.Store
	laid Store

	mu   sync.Mutex
	page int // where there was room last
}

func registerPage(i int) string { return fmt.Sprint(registerPrefix, i) }

var errPageFull = errors.New("steer: the page is full")

var _ lease.Store = (*Register)(nil)

// NewRegister returns s with its list.
func NewRegister(s Store) *Register { return &Register{Store: s.Store, laid: s} }

// SetAttributes implements lease.Store. A group that they declare is put into the list
// first.
func (r *Register) SetAttributes(ctx context.Context, seen lease.Attributes) (lease.Attributes, error) {
	group, ok := strings.CutPrefix(seen.Name, Group(""))
	if !ok || !ParsePolicy(seen).Declared {
		return r.Store.SetAttributes(ctx, seen)
	}
	old, err := r.laid.read(ctx, seen.Name)
	if err == nil && !ParsePolicy(old).Declared {
		err = r.add(ctx, group)
	}
	if err != nil {
		return lease.Attributes{}, err
	}
	return r.Store.SetAttributes(ctx, seen)
}

// add puts a name into the list.
func (r *Register) add(ctx context.Context, group string) error {
	r.mu.Lock()
	first := r.page
	r.mu.Unlock()
	for i := range registerPages {
		n := (first + i) % registerPages
		_, err := r.laid.Change(ctx, registerPage(n), 0, func(values map[string]string) error {
			if values[group] = policy.Yes; lease.CheckMetadata("", values) != nil {
				return errPageFull
			}
			return nil
		})
		if errors.Is(err, errPageFull) {
			continue
		}
		if err == nil {
			r.mu.Lock()
			r.page = n
			r.mu.Unlock()
		}
		return err
	}
	return ErrRegisterFull
}

// Remove takes a name out of the list.
func (r *Register) Remove(ctx context.Context, group string) error {
	pages, err := r.pages(ctx)
	for i, p := range pages {
		if p.Values[group] == "" {
			continue
		}
		_, failed := r.laid.Change(ctx, registerPage(i), 0, func(values map[string]string) error {
			delete(values, group)
			return nil
		})
		err = errors.Join(err, failed)
	}
	return err
}

// pages reads the list up to the first page that was never written.
func (r *Register) pages(ctx context.Context) ([]lease.Attributes, error) {
	var out []lease.Attributes
	for first := 0; first < registerPages; first += registerReads {
		var part [registerReads]lease.Attributes
		var errs [registerReads]error
		var all sync.WaitGroup
		for i := range part {
			all.Go(func() { part[i], errs[i] = r.laid.read(ctx, registerPage(first+i)) })
			if first == 0 && i == 0 {
				all.Wait() // mostly it is the only one
				if part[0].Version == 0 {
					return nil, errs[0]
				}
			}
		}
		all.Wait()
		if err := errors.Join(errs[:]...); err != nil {
			return nil, err
		}
		for _, p := range part {
			if p.Version == 0 {
				return out, nil
			}
			out = append(out, p)
		}
	}
	return out, nil
}

// Names returns the names in the list that begin so and come after one, sorted.
func (r *Register) Names(ctx context.Context, prefix, after string) ([]string, error) {
	pages, err := r.pages(ctx)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, p := range pages {
		for g := range maps.Keys(p.Values) {
			if strings.HasPrefix(g, prefix) && g > after {
				out = append(out, g)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// Unled returns the groups in scope that are declared and not among those that were led.
func (r *Register) Unled(ctx context.Context, scope lease.Scope, wasLed map[string]bool) ([]string, error) {
	names, err := r.Names(ctx, "", "")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, g := range names {
		if wasLed[g] || !scope.Covers(g) {
			continue
		}
		a, err := r.laid.read(ctx, Group(g))
		if err != nil {
			return nil, err
		}
		if p := ParsePolicy(a); p.Declared && !p.Deleted {
			out = append(out, g)
		}
	}
	return out, nil
}
