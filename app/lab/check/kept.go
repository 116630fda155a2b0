package check

import (
	"cmp"
	"context"
	"database/sql"
	"slices"

	"github.com/tenurehq/tenure/app/fleet/api"
	"github.com/tenurehq/tenure/fence"
)

// kept is what the ledger has of a group's sequence, to compare with what callers have:
// each answer must lie in one allocation of its token.
type kept struct {
	*tally
	unread  bool
	byToken map[fence.Token][]numbers
	least   uint64 // the ledger forgets what is older
	n       int
	early   bool // the doubt about calls before least was told
}

// maxAllocations is how many are kept in memory.
const maxAllocations = 1 << 24

func (k *kept) allocations(ctx context.Context, tx *sql.Tx, group string) error {
	if group == "" {
		return nil
	}
	rows, err := tx.QueryContext(ctx, "SELECT first_seq, last_seq, token FROM allocation WHERE resource = $1 AND name = $2", group, api.Sequence)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	k.byToken = map[fence.Token][]numbers{}
	for rows.Next() {
		var a numbers
		var token fence.Token
		if err := rows.Scan(&a.first, &a.last, &token); err != nil {
			return err
		}
		if k.n++; k.n > maxAllocations {
			k.doubt(nil, "more than %d allocations to compare with", maxAllocations)
			k.byToken = nil
			return nil
		}
		if k.least == 0 || a.first < k.least {
			k.least = a.first
		}
		k.byToken[token] = append(k.byToken[token], a)
	}
	for _, all := range k.byToken {
		slices.SortFunc(all, func(a, b numbers) int { return cmp.Compare(a.first, b.first) })
	}
	return rows.Err()
}

// call is told every answered call. A nil one compares nothing.
func (k *kept) call(c callAt) {
	if k == nil || k.unread || k.byToken == nil {
		return
	}
	if c.last < k.least {
		if k.count("calls not compared"); !k.early {
			k.early = true
			k.doubt([]Place{c.at}, "a caller has %d to %d, and the ledger has forgotten what is below %d: start it with a larger --history", c.first, c.last, k.least)
		}
		return
	}
	k.count("calls compared")
	all := k.byToken[c.token]
	i, exact := slices.BinarySearchFunc(all, c.first, func(a numbers, first uint64) int { return cmp.Compare(a.first, first) })
	if !exact {
		i--
	}
	if i < 0 || c.last > all[i].last {
		k.violated([]Place{c.at}, "a caller has %d to %d under token %d, and the ledger has no such allocation", c.first, c.last, c.token)
	}
}
