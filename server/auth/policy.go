package auth

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tenurehq/tenure/server/auth/secret"
	"github.com/tenurehq/tenure/store"
)

// policyFile is the policy file; the package comment has an example.
type policyFile struct {
	Roles   map[string][]allow  `json:"roles"`
	Names   map[string][]string `json:"names"`
	Refused []string            `json:"refused"`
}

type allow struct {
	Prefix *string `json:"prefix"`
	Verbs  []Verb  `json:"verbs"`
}

type policy struct {
	roles    map[string][]allow
	exact    map[string][]string // name: its roles
	prefixes map[string][]string // prefix of names: their roles
	refused  map[string]bool
}

const (
	maxRoles = 1000
	maxNames = 100_000
	maxRules = 1000 // of one role
)

func parsePolicy(text []byte) (*policy, error) {
	var f policyFile
	if err := secret.StrictJSON(text, &f); err != nil {
		return nil, err
	}
	if len(f.Roles) > maxRoles || len(f.Names) > maxNames || len(f.Refused) > maxNames {
		return nil, fmt.Errorf("more than %d roles or %d names", maxRoles, maxNames)
	}
	p := &policy{roles: f.Roles, exact: make(map[string][]string), prefixes: make(map[string][]string), refused: make(map[string]bool)}
	for _, role := range slices.Sorted(maps.Keys(f.Roles)) {
		if err := checkRole(role, f.Roles[role]); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.Names)) {
		for _, role := range f.Names[name] {
			if _, ok := f.Roles[role]; !ok {
				return nil, fmt.Errorf("name %q has role %q, which is not defined", secret.Name(name), secret.Name(role))
			}
		}
		begin, many := strings.CutSuffix(name, "*")
		switch {
		case many && (begin == "" || store.ValidName(begin)):
			p.prefixes[begin] = f.Names[name]
		case !many && store.ValidName(name):
			p.exact[name] = f.Names[name]
		default:
			return nil, fmt.Errorf("%q is neither a name nor a prefix followed by *", secret.Glimpse(name))
		}
	}
	for _, name := range f.Refused {
		if !store.ValidName(name) {
			return nil, fmt.Errorf("refused: %q is not a name", secret.Glimpse(name))
		}
		p.refused[name] = true
	}
	return p, nil
}

func checkRole(role string, allows []allow) error {
	if !store.ValidName(role) {
		return fmt.Errorf("role %q is not a name", secret.Glimpse(role))
	}
	if len(allows) > maxRules {
		return fmt.Errorf("role %q has more than %d rules", role, maxRules)
	}
	for _, a := range allows {
		switch {
		// A missing prefix must not mean every group.
		case a.Prefix == nil:
			return fmt.Errorf(`role %q has a rule without a prefix; "" means every group`, role)
		case *a.Prefix != "" && !store.ValidName(*a.Prefix):
			return fmt.Errorf("role %q: no group's name begins with %q", role, secret.Glimpse(*a.Prefix))
		case len(a.Verbs) == 0:
			return fmt.Errorf("role %q has a rule without verbs for prefix %q", role, *a.Prefix)
		}
		for _, v := range a.Verbs {
			if !slices.Contains(Verbs(), v) {
				return fmt.Errorf("role %q: verb %q is not one of %v", role, secret.Glimpse(string(v)), Verbs())
			}
		}
	}
	return nil
}

// rolesOf returns the roles of name, sorted.
func (p *policy) rolesOf(name string) []string {
	roles := slices.Clone(p.exact[name])
	for n := range len(name) + 1 {
		roles = append(roles, p.prefixes[name[:n]]...)
	}
	slices.Sort(roles)
	return slices.Compact(roles)
}

// allows reports whether one of the roles gives verb on group.
func (p *policy) allows(roles []string, verb Verb, group string) bool {
	for _, role := range roles {
		for _, a := range p.roles[role] {
			fits := group == SomeGroup || strings.HasPrefix(group, *a.Prefix)
			if group == AllGroups {
				fits = *a.Prefix == ""
			}
			if fits && slices.Contains(a.Verbs, verb) {
				return true
			}
		}
	}
	return false
}
