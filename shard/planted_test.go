//go:build planted

package shard

import (
	"testing"
	"testing/synctest"

	"github.com/tenurehq/tenure/internal/plant"
)

// Every bug breaks the promise that it is named for.
func TestPlanted(t *testing.T) {
	for name, c := range rules {
		t.Run(c.bug.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if c.check(t, plant.Of(c.bug)) == "" {
					t.Errorf("the bug was not caught: %s", name)
				}
			})
		})
	}
}
