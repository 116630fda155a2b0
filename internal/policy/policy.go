// Package policy reads what operators lay down for groups and nodes, and says whom it keeps
// from leading. The rules are in the attributes of the names that Group and Node return, as
// text that people can read.
package policy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The keys of the attributes.
const (
	KeyDeclared    = "declared"
	KeyDeleted     = "deleted"
	KeyMinTTL      = "min_ttl_ms"
	KeyMaxTTL      = "max_ttl_ms"
	KeyBackoff     = "backoff_ms"
	KeyMembers     = "members"
	KeyFenced      = "fenced"
	KeyMayBeVacant = "may_be_vacant"
	KeyCool        = "cool/" // and a node: until when, in ms since 1970
	KeyCordon      = "cordon"

	Yes = "yes"
	No  = "no"
)

// Group names the attributes of a group.
func Group(group string) string { return "group/" + group }

// Node names the attributes of a node.
func Node(node string) string { return "node/" + node }

// IsRule reports whether the attributes of the name can keep somebody from leading.
func IsRule(name string) bool {
	return strings.HasPrefix(name, Group("")) || strings.HasPrefix(name, Node(""))
}

// Policy is what is laid down for a group.
type Policy struct {
	Declared       bool // by an operator
	Deleted        bool
	MinTTL, MaxTTL time.Duration // 0: the deployment's
	Backoff        time.Duration
	Members        []string // none: everybody
	Fenced         bool
	MayBeVacant    bool // nobody reports that it has no leader

	values map[string]string
}

// Millis reads a duration. What cannot be read is 0.
func Millis(v string) time.Duration {
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 || n > int64(24*time.Hour/time.Millisecond) {
		return 0
	}
	return time.Duration(n) * time.Millisecond
}

// Parse reads the attributes of a group. What cannot be read is as if it were not there.
func Parse(values map[string]string) Policy {
	p := Policy{
		Declared: values[KeyDeclared] == Yes,
		Deleted:  values[KeyDeleted] == Yes,
		MinTTL:   Millis(values[KeyMinTTL]),
		MaxTTL:   Millis(values[KeyMaxTTL]),
		Backoff:  Millis(values[KeyBackoff]),
		Fenced:   values[KeyFenced] != No,

		MayBeVacant: values[KeyMayBeVacant] == Yes,
		values:      values,
	}
	if m := values[KeyMembers]; m != "" {
		p.Members = strings.Split(m, ",")
	}
	return p
}

// Cooling returns until when a node is not to lead the group again. The wall clock decides:
// nothing depends on the exact length of a cool-down.
func (p Policy) Cooling(node string) time.Time {
	ms, err := strconv.ParseInt(p.values[KeyCool+node], 10, 64)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// The codes of a Bar.
const (
	NoGroup     = "unknown_group"
	NotAMember  = "not_a_member"
	CoolingDown = "cooling_down"
	Cordoned    = "cordoned"
	TTLBounds   = "ttl_out_of_bounds"
)

// Bar is what keeps a node from leading a group.
type Bar struct {
	Code   string
	Group  string // "": every group
	Detail string
	Left   time.Duration // until it ends by itself; 0: it does not
	// TTL is out of these bounds, with TTLBounds. A bound of 0 is none.
	TTL, MinTTL, MaxTTL time.Duration
}

// Claim is a node that wants to begin to lead a group.
type Claim struct {
	Group, Node string
	TTL         time.Duration // of its session; 0: it has none yet
	Now         time.Time
	Declared    bool          // only groups that were declared can be led
	MaxTTL      time.Duration // of the deployment; 0: any
}

// Check says what keeps the claim from being granted, from the attributes of the group and
// of the node. nil: nothing does.
func (c Claim) Check(group, node map[string]string) *Bar {
	if b := c.policy(Parse(group)); b != nil {
		return b
	}
	if b := c.Cordon(node); b != nil {
		return b
	}
	return c.bounds(Parse(group))
}

func (c Claim) policy(p Policy) *Bar {
	bar := func(code, format string, args ...any) *Bar {
		return &Bar{Code: code, Group: c.Group, Detail: fmt.Sprintf(format, args...)}
	}
	switch {
	case p.Deleted:
		return bar(NoGroup, "there is no group %q: it was deleted", c.Group)
	case c.Declared && !p.Declared:
		return bar(NoGroup, "group %q is not declared, and this service elects declared groups only", c.Group)
	case len(p.Members) > 0 && !slices.Contains(p.Members, c.Node):
		return bar(NotAMember, "node %q is not among the members of group %q: an operator can add it to the policy", c.Node, c.Group)
	}
	if left := p.Cooling(c.Node).Sub(c.Now); left > 0 {
		b := bar(CoolingDown, "node %q was asked to step down and is not to lead group %q for another %v", c.Node, c.Group, left.Round(time.Millisecond))
		b.Left = left
		return b
	}
	return nil
}

// Cordon says why the node may lead nothing. nil: it may.
func (c Claim) Cordon(node map[string]string) *Bar {
	why, is := node[KeyCordon]
	if !is {
		return nil
	}
	const most = 100
	if len(why) > most {
		why = why[:most] + "…"
	}
	return &Bar{Code: Cordoned, Detail: fmt.Sprintf("node %q is cordoned (%s): it begins no term until an operator removes the cordon (`tenure uncordon %s`)", c.Node, why, c.Node)}
}

func (c Claim) bounds(p Policy) *Bar {
	least, most := p.MinTTL, p.MaxTTL
	if c.MaxTTL > 0 && (most == 0 || most > c.MaxTTL) {
		most = c.MaxTTL
	}
	if c.TTL == 0 || c.TTL >= least && (most == 0 || c.TTL < most+time.Second) { // engines may count in seconds
		return nil
	}
	allows := fmt.Sprintf("no less than %v", least)
	if most > 0 {
		allows = fmt.Sprintf("from %v to %v", least, most)
	}
	return &Bar{
		Code: TTLBounds, Group: c.Group, TTL: c.TTL, MinTTL: least, MaxTTL: most,
		Detail: fmt.Sprintf("ttl is %v: the policy of group %q allows %s", c.TTL, c.Group, allows),
	}
}
