package storetest

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

// Groups are listed by name, sessions as they stand in line; pages join without
// gap or repetition, and nothing out of scope is listed.
func listsInOrder(c *check) {
	a := c.session("a")
	var want []string
	for i := range 23 {
		want = append(want, c.group(fmt.Sprintf("in-%02d", i)))
	}
	led := make(map[string]bool)
	for n, i := range rand.Perm(len(want)) {
		held := c.take(a, want[i])
		if led[want[i]] = n%2 == 0; !led[want[i]] {
			c.give(a, held, "")
		}
	}
	c.take(a, c.group("out"))
	c.read(c.group("in-never"))
	groups := func(scope store.Scope, limit int) (names []string) {
		page := store.Page{Limit: limit}
		for {
			views, err := c.store.Groups(c.ctx, scope, page)
			c.Must("groups", err)
			if len(views) > limit {
				c.Fatalf("a page of %d has %d groups", limit, len(views))
			}
			for _, v := range views {
				if led[v.Group] != (v.State == tenure.Led) {
					c.Errorf("%q is listed as %v", v.Group, v.State)
				}
				names = append(names, v.Group)
				page.After = v.Group
			}
			if len(views) < limit {
				return names
			}
		}
	}
	if got := groups(c.scope("in-"), 10); !slices.Equal(got, want) {
		c.Errorf("listed are %v, want %v", got, want)
	}
	if got := groups(store.Scope{want[3], c.prefix + "in-1*", want[3]}, 4); !slices.Equal(got, append([]string{want[3]}, want[10:20]...)) {
		c.Errorf("within a scope of two patterns are listed %v", got)
	}
	if got := groups(c.scope("none"), 5); len(got) != 0 {
		c.Errorf("within a scope without groups are listed %v", got)
	}

	for i := range 6 {
		c.openAs(tenure.Candidate{ID: fmt.Sprint("c", i), Priority: i % 3}, lasting, store.Scope{c.group("line-") + "*"})
	}
	foreign := c.openAs(tenure.Candidate{ID: "foreign", Priority: 9}, lasting, store.Scope{c.group("elsewhere")})
	gone := c.openAs(tenure.Candidate{ID: "gone", Priority: 9}, lasting, c.scope("line-"))
	c.close(gone.ID)
	line := c.listed(store.Scope{c.group("line-x")})
	if len(line) != 7 { // the six, and a, which stands for all
		c.Errorf("%d sessions stand in line, want 7", len(line))
	}
	for i, n := range line {
		if n.ID == foreign.ID || n.ID == gone.ID {
			c.Errorf("session %q of %q stands in line", n.ID, n.Candidate.ID)
		}
		if i > 0 && store.InLine(line[i-1], n) >= 0 {
			c.Errorf("session %+v is listed before %+v", line[i-1], n)
		}
	}
	page, err := c.store.Sessions(c.ctx, c.scope("line-"), store.Page{Limit: 2})
	c.Must("sessions", err)
	if len(page) != 2 {
		c.Errorf("a page of 2 has %d sessions", len(page))
	}
}

// The history has at least the promised number of terms, newest first, in pages
// that join.
func historyReaches(c *check) {
	group := c.group("g")
	a := c.session("a")
	var tokens []fence.Token
	r := store.Record{Group: group}
	for range store.HistoryKept {
		granted, err := c.store.Acquire(c.ctx, a, r)
		c.Must("acquire", err)
		tokens = append(tokens, granted[0].Token)
		r, err = release(c.ctx, c.store, a, granted[0], "", "")
		c.Must("release", err)
	}
	slices.Reverse(tokens)
	var told []fence.Token
	page := store.Page{Limit: 100}
	for {
		terms, err := c.store.History(c.ctx, group, page)
		c.Must("history", err)
		for _, term := range terms {
			if term.Session != a || term.Candidate != "a" || term.End.IsZero() {
				c.Errorf("the history has the wrong term %+v", term)
			}
			told = append(told, term.Token)
			page.After = term.Token.String()
		}
		if len(terms) < page.Limit {
			break
		}
	}
	if !slices.Equal(told, tokens) {
		c.Errorf("the history tells %d terms, from %v; want %d, from %v", len(told), first(told), len(tokens), first(tokens))
	}
	none, err := c.store.History(c.ctx, c.group("never"), store.Page{})
	if err != nil || len(none) != 0 {
		c.Errorf("the history of a group without one is %v, %v", none, err)
	}
}

func first(tokens []fence.Token) []fence.Token { return tokens[:min(3, len(tokens))] }

// Attributes are replaced as a whole from the version seen, by one of two
// writers; what is removed keeps its version.
func attributesCompared(c *check) {
	name := "group/" + c.group("g")
	seen, err := c.store.Attributes(c.ctx, name)
	c.Must("attributes", err)
	if seen.Name != name || seen.Version != 0 || len(seen.Values) != 0 {
		c.Errorf("never set, they are %+v", seen)
	}
	set := func(version uint64, values map[string]string) (store.Attributes, error) {
		return c.store.SetAttributes(c.ctx, store.Attributes{Name: name, Version: version, Values: values})
	}
	is := func(what string, got store.Attributes, newer bool, values map[string]string) {
		if got.Name != name || newer != (got.Version > seen.Version) || !newer && got.Version != seen.Version || !maps.Equal(got.Values, values) {
			c.Errorf("%s: %+v, want values %v; the version before was %d, want a newer one: %v", what, got, values, seen.Version, newer)
		}
		seen = got
	}
	one := map[string]string{"policy": "strict", "cordon": "yes"}
	got, err := set(0, one)
	c.Must("first write", err)
	is("first write", got, true, one)
	c.wants("write from an old version", errOf(set(0, map[string]string{"policy": "lax"})), store.ErrConflict)
	c.wants("write from a version to come", errOf(set(seen.Version+7, map[string]string{"policy": "lax"})), store.ErrConflict)
	got, err = c.engine.Open(c.t).Attributes(c.ctx, name)
	c.Must("attributes", err)
	is("read by another client", got, false, one)
	got, err = set(seen.Version, map[string]string{"policy": "lax", "cordon": ""})
	c.Must("second write", err)
	is("second write", got, true, map[string]string{"policy": "lax"})
	got, err = set(seen.Version, nil)
	c.Must("removal", err)
	is("removal", got, true, nil)
	c.wants("write as if never set", errOf(set(0, one)), store.ErrConflict)
	got, err = c.store.Attributes(c.ctx, name)
	c.Must("attributes", err)
	is("read after the removal", got, false, nil)
}

// attributesRemoved: removed attributes that are no rules leave nothing behind.
func attributesRemoved(c *check) {
	name := "once/" + c.group("g") + "/k"
	values := map[string]string{"state": "done"}
	a, err := c.store.SetAttributes(c.ctx, store.Attributes{Name: name, Values: values})
	c.Must("write", err)
	old := a
	a.Values = nil
	a, err = c.store.SetAttributes(c.ctx, a)
	c.Must("removal", err)
	if a.Version != 0 || len(a.Values) != 0 {
		c.Errorf("the removal answers %+v", a)
	}
	all, err := c.engine.Open(c.t).ListAttributes(c.ctx, name, store.Page{})
	c.Must("list", err)
	if len(all) != 0 {
		c.Errorf("after the removal %+v are listed", all)
	}
	c.wants("write from the version before the removal", errOf(c.store.SetAttributes(c.ctx, old)), store.ErrConflict)
	if a, err = c.store.Attributes(c.ctx, name); err != nil || a.Version != 0 || len(a.Values) != 0 {
		c.Errorf("after the removal they are %+v, %v", a, err)
	}
	a.Values = values
	a, err = c.store.SetAttributes(c.ctx, a)
	c.Must("write after the removal", err)
	if a.Version == 0 {
		c.Errorf("written again they are %+v", a)
	}
}

// Attributes are listed by prefix, in the order of their names, in pages, with their values.
func attributesListed(c *check) {
	var want []string
	for _, n := range []string{"c", "a", "b"} {
		name := "group/" + c.group(n)
		want = append(want, name)
		_, err := c.store.SetAttributes(c.ctx, store.Attributes{Name: name, Values: map[string]string{"name": name}})
		c.Must("write", err)
	}
	_, err := c.store.SetAttributes(c.ctx, store.Attributes{Name: "node/" + c.group("a"), Values: map[string]string{"name": ""}})
	c.Must("write of another kind", err)
	slices.Sort(want)
	var got []string
	for page := (store.Page{Limit: 2}); ; {
		all, err := c.engine.Open(c.t).ListAttributes(c.ctx, "group/"+c.group(""), page)
		c.Must("list", err)
		for _, a := range all {
			got = append(got, a.Name)
			if a.Version == 0 || a.Values["name"] != a.Name {
				c.Errorf("listed as %+v", a)
			}
		}
		if len(all) < page.Limit || len(got) > len(want) {
			break
		}
		page.After = got[len(got)-1]
	}
	if !slices.Equal(got, want) {
		c.Errorf("listed %v, want %v", got, want)
	}
}

// Arguments that break a rule are refused definitely, as what they are, and
// leave no trace.
func argumentsRefused(c *check) {
	s, id := c.store, c.session("a")
	limits := s.Caps()
	group := c.group("g")
	scope := store.Scope{group}
	long := strings.Repeat("x", store.MaxMetadata+1)
	open := func(who tenure.Candidate, ttl time.Duration, scope store.Scope) error {
		return errOf(s.Open(c.ctx, who, ttl, store.OpenOptions{Scope: scope}))
	}
	ask := func(change func(*store.Request)) error {
		r := c.request("r")
		change(&r)
		return s.Ask(c.ctx, id, r)
	}
	who := tenure.Candidate{ID: "a"}
	for what, err := range map[string]error{
		"no candidate":            open(tenure.Candidate{}, lasting, scope),
		"candidate in capitals":   open(tenure.Candidate{ID: "A"}, lasting, scope),
		"too much metadata":       open(tenure.Candidate{ID: "a", Metadata: map[string]string{"k": long}}, lasting, scope),
		"no TTL":                  open(who, 0, scope),
		"negative TTL":            open(who, -time.Second, scope),
		"TTL too long":            open(who, limits.MaxTTL+time.Second, scope),
		"no scope":                open(who, lasting, nil),
		"scope with a bad name":   open(who, lasting, store.Scope{"?"}),
		"no records":              errOf(s.Acquire(c.ctx, id)),
		"record without a group":  errOf(s.Acquire(c.ctx, id, store.Record{})),
		"batch with a bad group":  errOf(s.Acquire(c.ctx, id, store.Record{Group: group}, store.Record{Group: "a/b"})),
		"release without a group": errOf(release(c.ctx, s, id, store.Record{}, "", "")),
		"read of a bad group":     errOf(s.Read(c.ctx, "a b")),
		"read of a long name":     errOf(s.Read(c.ctx, strings.Repeat("g", 64))),
		"request without id":      ask(func(r *store.Request) { r.ID = "" }),
		"request with a long id":  ask(func(r *store.Request) { r.ID = strings.Repeat("r", 65) }),
		"unknown verb":            ask(func(r *store.Request) { r.Verb = "sing" }),
		"request of a bad group":  ask(func(r *store.Request) { r.Group = "" }),
		"request without TTL":     ask(func(r *store.Request) { r.TTL = 0 }),
		"request for too long":    ask(func(r *store.Request) { r.TTL = time.Hour + time.Second }),
		"negative cool-down":      ask(func(r *store.Request) { r.CoolDown = -1 }),
		"cool-down too long":      ask(func(r *store.Request) { r.CoolDown = 25 * time.Hour }),
		"answer without outcome":  s.Answer(c.ctx, id, "r", store.Answer{}),
		"groups without scope":    errOf(s.Groups(c.ctx, nil, store.Page{})),
		"page too large":          errOf(s.Groups(c.ctx, scope, store.Page{Limit: store.MaxPage + 1})),
		"negative page":           errOf(s.Sessions(c.ctx, scope, store.Page{Limit: -1})),
		"history of a bad group":  errOf(s.History(c.ctx, "", store.Page{})),
		"history after no token":  errOf(s.History(c.ctx, group, store.Page{After: "x"})),
		"attributes without name": errOf(s.Attributes(c.ctx, "")),
		"list without prefix":     errOf(s.ListAttributes(c.ctx, "", store.Page{})),
		"attributes of a bad one": errOf(s.Attributes(c.ctx, "Group/?")),
		"too many attributes":     errOf(s.SetAttributes(c.ctx, store.Attributes{Name: "group/" + group, Values: map[string]string{"k": long}})),
	} {
		c.wants(what, err, store.ErrInvalid)
	}
	for _, err := range s.Watch(c.ctx, nil) {
		c.wants("watch without scope", err, store.ErrInvalid)
		break
	}
	c.unchanged("after all that", store.Record{Group: group}, tenure.Vacant)
	if n := len(c.waiting(id)); n != 0 {
		c.Errorf("%d refused requests arrived", n)
	}
	if sessions, err := s.Sessions(c.ctx, scope, store.Page{}); err != nil || len(sessions) == 0 {
		c.Errorf("sessions: %v, %v", sessions, err)
	} else if i := slices.IndexFunc(sessions, func(n store.Session) bool { return slices.Equal(n.Scope, scope) }); i >= 0 {
		c.Errorf("a refused session is listed: %+v", sessions[i])
	}
	a, err := s.Attributes(c.ctx, "group/"+group)
	if err != nil || a.Version != 0 {
		c.Errorf("refused attributes are at version %d, %v", a.Version, err)
	}
}
