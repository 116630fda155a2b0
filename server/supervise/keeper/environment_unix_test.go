//go:build unix

package keeper

import (
	"slices"
	"strings"
	"testing"
)

// The command gets the token, the deployment and the session of its own term, even if an
// outer exec has set others.
func TestEnvironment(t *testing.T) {
	names := []string{EnvToken, EnvDeployment, EnvSession}
	for _, name := range names {
		t.Setenv(name, "outer")
	}
	var got []string
	for _, kv := range environment(Message{Token: "7", Deployment: "d", Session: "s"}) {
		if name, _, _ := strings.Cut(kv, "="); slices.Contains(names, name) {
			got = append(got, kv)
		}
	}
	slices.Sort(got)
	if want := []string{EnvDeployment + "=d", EnvSession + "=s", EnvToken + "=7"}; !slices.Equal(got, want) {
		t.Errorf("the environment has %q, want %q", got, want)
	}
}
