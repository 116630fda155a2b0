package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurehq/tenure/app/httpapi"
	"github.com/tenurehq/tenure/lease"
)

const (
	// createdPrefix and a number name the attributes that list the created groups. A store
	// lists what was ever led; what was only created stands here.
	createdPrefix = "service/groups-"
	// createdPages bounds the list. A page holds at least 60 names, and mostly 150.
	createdPages = 512
	// createdReads is how many pages are read at once.
	createdReads = 16
)

// created is the list of created groups. A name may stand in it without a policy (its
// creation failed, or it was deleted), so what it says is compared with the policy; a
// policy that was written here has its name in it.
type created struct {
	s    *Service
	mu   sync.Mutex
	page int // where there was room last
}

func newCreated(s *Service) *created { return &created{s: s} }

func createdPage(i int) string { return fmt.Sprint(createdPrefix, i) }

var errPageFull = errors.New("service: the page is full")

// add puts a name into the list, before its policy is written.
func (c *created) add(ctx context.Context, group string) error {
	c.mu.Lock()
	first := c.page
	c.mu.Unlock()
	for i := range createdPages {
		n := (first + i) % createdPages
		err := c.s.change(ctx, createdPage(n), func(values map[string]string) error {
			if values[group] = "yes"; lease.CheckMetadata("", values) != nil {
				return errPageFull
			}
			return nil
		})
		if errors.Is(err, errPageFull) {
			continue
		}
		if err == nil {
			c.mu.Lock()
			c.page = n
			c.mu.Unlock()
		}
		return err
	}
	return &httpapi.Problem{
		Status: http.StatusTooManyRequests, Code: "quota_created_groups", RetryAfter: time.Minute,
		Detail: "this deployment has as many created groups as it can list: delete some, or let campaigns create them (--groups=open)",
	}
}

// remove takes a name out of the list.
func (c *created) remove(ctx context.Context, group string) error {
	pages, err := c.pages(ctx)
	for i, p := range pages {
		if p.Values[group] == "" {
			continue
		}
		failed := c.s.change(ctx, createdPage(i), func(values map[string]string) error {
			delete(values, group)
			return nil
		})
		err = errors.Join(err, failed)
	}
	return err
}

// pages reads the list up to the first page that was never written.
func (c *created) pages(ctx context.Context) ([]lease.Attributes, error) {
	var out []lease.Attributes
	for first := 0; first < createdPages; first += createdReads {
		var part [createdReads]lease.Attributes
		var errs [createdReads]error
		var all sync.WaitGroup
		for i := range part {
			all.Go(func() { part[i], errs[i] = c.s.attributes(ctx, createdPage(first+i)) })
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

// names returns the names in the list that begin so and come after one, sorted.
func (c *created) names(ctx context.Context, prefix, after string) ([]string, error) {
	pages, err := c.pages(ctx)
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
