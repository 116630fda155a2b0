package redis

import (
	"context"
	_ "embed" // the scripts
	"fmt"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/tenurehq/tenure/store/kv"
)

//go:embed commit.lua
var commitText string

//go:embed list.lua
var listText string

//go:embed rights.lua
var rightsText string

var (
	rightsScript = goredis.NewScript(rightsText)
	commitScript = goredis.NewScript(commitText)
	listScript   = goredis.NewScript(listText)
)

var _ kv.Driver = (*Driver)(nil)

// Caps implements kv.Driver.
func (d *Driver) Caps() kv.Caps {
	return kv.Caps{Engine: "redis", MinTTL: minTTL, MaxTTL: maxTTL, Lateness: lateness, Keys: maxOps, Loses: loses, Prefix: d.keys[0] + " "}
}

// Commit implements kv.Driver with one script.
func (d *Driver) Commit(ctx context.Context, t kv.Txn) (kv.Result, error) {
	args := []any{d.channel, counts(t), len(t.If)}
	for _, c := range t.If {
		version := strconv.FormatUint(c.Version, 10)
		if c.Version == kv.Any {
			version = "any"
		}
		args = append(args, c.Key, version)
	}
	args = append(args, len(t.Then))
	for _, w := range t.Then {
		kind := "set"
		switch {
		case w.Value == nil:
			kind = "delete"
		case w.Quiet:
			kind = "quiet"
		}
		args = append(args, w.Key, kind, w.Value)
	}
	for _, keys := range [][]string{t.Read, t.Else} {
		args = append(args, len(keys))
		for _, k := range keys {
			args = append(args, k)
		}
	}
	reply, err := d.run(ctx, "commit", commitScript, args)
	if err != nil {
		return kv.Result{}, err
	}
	r, _, err := d.result(reply, t)
	return r, err
}

// counts reports whether a commit is a change that must not be lost. A keep-alive, which writes a
// key in any version, does not count: after a failover that lost only keep-alives, elections continue.
func counts(t kv.Txn) bool {
	return !(len(t.If) == 1 && t.If[0].Version == kv.Any && len(t.Then) == 1 && t.Then[0].Quiet)
}

// stateFields is how many fields of an answer come before the items: ok, version, index, life, began.
const stateFields = 5

// result parses the answer to a commit. began is the index at which this incarnation of the
// data began.
func (d *Driver) result(reply []any, t kv.Txn) (r kv.Result, began uint64, err error) {
	reads := t.Read
	var version uint64
	if len(reply) >= stateFields {
		r.OK = reply[0] == int64(1)
		version, _ = number(reply[1])
		r.Index, _ = number(reply[2])
		began, _ = number(reply[4])
		r.Incarnation, _ = reply[3].(string)
	}
	if !r.OK {
		reads = append(reads[:len(reads):len(reads)], t.Else...)
	}
	if version == 0 || r.Index == 0 || began == 0 || r.Incarnation == "" || len(reply) != stateFields+len(reads) {
		return kv.Result{}, 0, fmt.Errorf("redis: the commit script answers %.200q", fmt.Sprint(reply...))
	}
	for i, key := range reads {
		item, err := itemOf(key, reply[stateFields+i])
		if err != nil {
			return kv.Result{}, 0, err
		}
		r.Items = append(r.Items, item)
	}
	if r.OK {
		for _, w := range t.Then {
			v := version
			if w.Value == nil {
				v = 0
			}
			r.Versions = append(r.Versions, v)
		}
	}
	d.noteIncarnation(r.Incarnation)
	return r, began, nil
}

func number(v any) (uint64, error) {
	s, _ := v.(string)
	return strconv.ParseUint(s, 10, 63)
}

// itemOf reads "version created value"; nil is a missing item.
func itemOf(key string, v any) (kv.Item, error) {
	if v == nil {
		return kv.Item{Key: key}, nil
	}
	s, _ := v.(string)
	if parts := strings.SplitN(s, " ", 3); len(parts) == 3 {
		version, err := number(parts[0])
		created, err2 := number(parts[1])
		if err == nil && err2 == nil && version > 0 {
			return kv.Item{Key: key, Value: []byte(parts[2]), Version: version, Created: created}, nil
		}
	}
	return kv.Item{}, fmt.Errorf("redis: item %q cannot be read: %.100q", key, s)
}

// List implements kv.Driver.
func (d *Driver) List(ctx context.Context, prefix, after string, limit int) ([]kv.Item, error) {
	from, to := "["+prefix, "["+prefix+"\xff"
	if after != "" {
		from = "(" + after
	}
	reply, err := d.run(ctx, "list "+prefix, listScript, []any{from, to, limit})
	if err != nil {
		return nil, err
	}
	items := make([]kv.Item, len(reply)/2)
	for i := range items {
		key, _ := reply[2*i].(string)
		if items[i], err = itemOf(key, reply[2*i+1]); err != nil {
			return nil, err
		}
	}
	return items, nil
}

// Incarnation implements kv.Driver. Each Redis process is an incarnation: after a failover or a
// restart another one answers, which may have less data. A client that has seen a higher index
// than Began knows that data was lost.
func (d *Driver) Incarnation(ctx context.Context) (kv.Incarnation, error) {
	reply, err := d.run(ctx, "read the state", commitScript, []any{d.channel, false, 0, 0, 0, 0})
	if err != nil {
		return kv.Incarnation{}, err
	}
	r, began, err := d.result(reply, kv.Txn{})
	return kv.Incarnation{ID: r.Incarnation, Began: began, Index: r.Index}, err
}
