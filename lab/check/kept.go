package check

import (
	"context"
	"crypto/sha256"
	"database/sql"

	"github.com/tenurehq/tenure/reference/api"
)

// kept is what the ledger's database has of a group. Each answer of a caller must lie in
// one allocation of its token. If the history has a file of effects, it must have the
// same effects in the same order.
type kept struct {
	*tally
	unread bool
	group  string
	// all are the allocations of the group's sequence, of which the ledger may have
	// removed the oldest.
	all   allocations
	early bool // the doubt about calls before all.least was told

	// effects are digests of the effects; compared were found in the history.
	effects  [][8]byte
	compared int
	differs  bool
}

func (k *kept) allocations(ctx context.Context, tx *sql.Tx) error {
	return Effects(ctx, tx, k.group, func(e Effect) error {
		if k.unread {
			return nil
		}
		digest, err := digestOf(e)
		k.effects = append(k.effects, digest)
		if err != nil || e.What != EffectSequence || e.Name != api.Sequence {
			return err
		}
		if k.unread = k.tooMany(k.all.n, maxAllocations); !k.unread {
			k.all.add(e.Token, allocation{numbers: numbers{e.First, e.Last}})
		}
		return nil
	})
}

// digestOf is enough of a digest to compare two effects.
func digestOf(e Effect) (short [8]byte, err error) {
	line, err := encode(e)
	sum := sha256.Sum256(line)
	copy(short[:], sum[:])
	return short, err
}

// effect is called with every effect of the history, in its order.
func (k *kept) effect(e Effect, at Place) {
	if k == nil || k.unread || k.differs || k.group == "" {
		return
	}
	k.compared++
	if digest, err := digestOf(e); err != nil || k.compared > len(k.effects) || digest != k.effects[k.compared-1] {
		k.differs = true
		k.violated([]Place{at}, "this effect is not the one that the ledger's database has at its place (%d of %d)", k.compared, len(k.effects))
	}
}

// complete checks that the history has all effects. A nil one compares nothing.
func (k *kept) complete() {
	if k != nil && !k.unread && !k.differs && k.compared < len(k.effects) {
		k.violated(nil, "the ledger's database has %d effects, and the history only the first %d", len(k.effects), k.compared)
	}
}

// call is called with every answered call. A nil one compares nothing.
func (k *kept) call(c callAt) {
	if k == nil || k.unread || k.group == "" {
		return
	}
	if c.last < k.all.least {
		if k.count("calls not compared"); !k.early {
			k.early = true
			k.doubt([]Place{c.at}, "a caller has %d to %d, and the ledger has forgotten what is below %d: start it with a larger --history", c.first, c.last, k.all.least)
		}
		return
	}
	k.count("calls compared")
	if k.all.holding(c.token, c.first, c.last) == nil {
		k.violated([]Place{c.at}, "a caller has %d to %d under token %d, and the ledger has no such allocation", c.first, c.last, c.token)
	}
}
