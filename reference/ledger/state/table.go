package state

import (
	"context"
	"fmt"
	"strings"

	"github.com/tenurehq/tenure/reference/ledger/database"
)

// key identifies a row.
type key interface {
	comparable
	row() database.Row
}

// name is a name that is alone.
type name string

func (n name) row() database.Row { return database.Row{string(n)} }

// at names something of a resource.
type at struct{ resource, name string }

func (k at) row() database.Row { return database.Row{k.resource, k.name} }

// moment identifies a firing.
type moment struct {
	resource, job string
	atMS          int64
}

func (k moment) row() database.Row { return database.Row{k.resource, k.job, k.atMS} }

// sharedKey names a shared record. Deployments do not see each other's.
type sharedKey struct{ deployment, space, name string }

func (k sharedKey) row() database.Row { return database.Row{k.deployment, k.space, k.name} }

// table is what a group reads and may change of a table of the database.
type table[K key, R any] struct {
	wanted  map[K]bool
	rows    map[K]R
	changed map[K]bool
}

func (t *table[K, R]) want(k K) {
	if t.wanted == nil {
		t.wanted, t.rows, t.changed = make(map[K]bool), make(map[K]R), make(map[K]bool)
	}
	t.wanted[k] = true
}

// set changes a row, and returns a function that undoes it.
func (t *table[K, R]) set(k K, r R) (undo func()) {
	was, had := t.rows[k]
	changed := t.changed[k]
	t.rows[k], t.changed[k] = r, true
	return func() {
		if t.rows[k] = was; !had {
			delete(t.rows, k)
		}
		if !changed {
			delete(t.changed, k)
		}
	}
}

// load reads the wanted rows. dest says where the columns go.
func (t *table[K, R]) load(ctx context.Context, tx *database.Tx, query string, dest func(*K, *R) []any) error {
	keys := make([]database.Row, 0, len(t.wanted))
	for k := range t.wanted {
		keys = append(keys, k.row())
	}
	return database.ReadRows(ctx, tx, query, keys, t.rows, dest)
}

// write is a statement on {rows}.
type write struct {
	statement string
	rows      []database.Row
}

// add adds a row: its key, and values.
func (w *write) add(k database.Row, values ...any) { w.rows = append(w.rows, append(k, values...)) }

// changes writes the changed rows: the key, and the values.
func (t *table[K, R]) changes(statement string, values func(R) []any) write {
	w := write{statement: statement}
	for k := range t.changed {
		w.add(k.row(), values(t.rows[k])...)
	}
	return w
}

// columns returns the names of columns and their values in a row of {rows}. Numbers are marked
// with #.
func columns(list string) (names, values []string) {
	for i, name := range strings.Fields(list) {
		value := fmt.Sprintf("e->>%d", i)
		if name[len(name)-1] == '#' {
			name, value = name[:len(name)-1], "CAST("+value+" AS BIGINT)"
		}
		names, values = append(names, name), append(values, value)
	}
	return names, values
}

func insert(table, list string) string {
	names, values := columns(list)
	return "INSERT INTO " + table + " (" + strings.Join(names, ", ") + ") SELECT " + strings.Join(values, ", ") + " FROM {rows} WHERE true"
}

func upsert(table, keys, list string) string {
	names, _ := columns(list)
	for i, name := range names {
		names[i] = name + " = excluded." + name
	}
	return insert(table, keys+" "+list) + " ON CONFLICT (" + strings.ReplaceAll(keys, " ", ", ") + ") DO UPDATE SET " + strings.Join(names, ", ")
}

func selectRows(table, keys, list string) string {
	names, values := columns(keys)
	for i, name := range names {
		values[i] = "t." + name + " = " + values[i]
	}
	names = append(names, strings.Fields(list)...)
	return "SELECT t." + strings.Join(names, ", t.") + " FROM {rows} JOIN " + table + " t ON " + strings.Join(values, " AND ")
}

func deleteRows(table, keys string) string {
	names, values := columns(keys)
	return "DELETE FROM " + table + " WHERE (" + strings.Join(names, ", ") + ") IN (SELECT " + strings.Join(values, ", ") + " FROM {rows})"
}
