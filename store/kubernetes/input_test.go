package kubernetes_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kubernetes"
	"github.com/tenurehq/tenure/store/storetest"
)

// refused opens a store, which fails within seconds with an error of the class that says the
// words.
func refused(t *testing.T, cfg kubernetes.Config, class error, words ...string) {
	t.Helper()
	began := time.Now()
	s, err := kubernetes.Open(t.Context(), cfg)
	if err == nil {
		s.Close()
		t.Fatal("opened")
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("took %v", took)
	}
	if class != nil && !errors.Is(err, class) {
		t.Errorf("%v is no %v", err, class)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err, word)
		}
	}
	if cfg.REST != nil && cfg.REST.BearerToken != "" && strings.Contains(err.Error(), cfg.REST.BearerToken) {
		t.Errorf("%q shows the token", err)
	}
}

// A wrong namespace, server, authority or token is an error that names it.
func testBadInput(t *testing.T, c *cluster) {
	namespace := c.namespace(t)
	with := func(change func(*kubernetes.Config)) kubernetes.Config {
		cfg := c.config(namespace)
		change(&cfg)
		return cfg
	}
	refused(t, with(func(c *kubernetes.Config) { c.Namespace = "nowhere" }), store.ErrInvalid, "namespace", "nowhere", "does not exist")
	refused(t, with(func(c *kubernetes.Config) { c.Namespace = "No" }), store.ErrInvalid, "namespace", "No")
	refused(t, with(func(c *kubernetes.Config) { c.Name = "a.b" }), store.ErrInvalid, "name", "a.b")
	refused(t, with(func(c *kubernetes.Config) { c.MinTTL = 1 }), store.ErrInvalid, "min ttl")
	refused(t, with(func(c *kubernetes.Config) { c.REST.Host = "https://127.0.0.1:1" }), nil, "127.0.0.1:1")
	refused(t, with(func(c *kubernetes.Config) { c.REST.BearerToken = "some-other-token" }), store.ErrUnauthenticated, "token")
	expired := c.ServiceToken(namespace, "tenure", time.Now().Add(-time.Hour))
	refused(t, with(func(c *kubernetes.Config) { c.REST.BearerToken = expired }), store.ErrUnauthenticated, "expired")
	other := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(other, []byte(otherCA), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, with(func(c *kubernetes.Config) { c.REST.TLSClientConfig = rest.TLSClientConfig{CAFile: other} }), nil, "certificate", "authority")
	refused(t, with(func(c *kubernetes.Config) { c.REST.TLSClientConfig = rest.TLSClientConfig{CAFile: other + "x"} }), store.ErrInvalid, other+"x")
	refused(t, kubernetes.Config{Namespace: namespace, Kubeconfig: other + "x"}, store.ErrInvalid, other+"x")
	if left := kubectl(t, c, namespace); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// What a newer version wrote is refused, and stays as it is.
func testNewerFormat(t *testing.T, c *cluster) {
	cfg := c.config(c.namespace(t))
	open(t, cfg).Close()
	c.do(t, http.MethodPatch, leases(cfg.Namespace)+"/tenure.meta", "application/merge-patch+json", `{"metadata":{"annotations":{"tenure/value":"{\"format\":99}"}}}`)
	refused(t, cfg, store.ErrNewer, cfg.Namespace+"/tenure.meta", "99")
}

// user is for a user who has the role of deploy/kubernetes in a namespace.
func (c *cluster) user(t *testing.T) kubernetes.Config {
	t.Helper()
	cfg := c.config(c.namespace(t))
	cfg.REST.BearerToken = c.User
	apply(t, c, "rbac.yaml", cfg.Namespace)
	c.do(t, http.MethodPost, "/apis/rbac.authorization.k8s.io/v1/namespaces/"+cfg.Namespace+"/rolebindings", "application/json",
		`{"metadata":{"name":"user"}, "roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"tenure"},
		"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"tenure"}]}`)
	return cfg
}

// The role of deploy/kubernetes is enough, and each of its verbs is needed: the error names
// the one that is missing, and nothing stays behind.
func testRights(t *testing.T, c *cluster) {
	cfg := c.user(t)
	namespace := cfg.Namespace
	verbs := []string{"get", "list", "watch", "create", "patch", "delete"}
	allow := func(verbs ...string) {
		c.do(t, http.MethodPatch, "/apis/rbac.authorization.k8s.io/v1/namespaces/"+namespace+"/roles/tenure", "application/merge-patch+json",
			`{"rules":[{"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["`+strings.Join(verbs, `","`)+`"]}]}`)
	}
	for i, verb := range verbs {
		var others []string
		others = append(append(others, verbs[:i]...), verbs[i+1:]...)
		allow(others...)
		storetest.Eventually(t, func() error { // the API server takes a moment to notice
			s, err := kubernetes.Open(t.Context(), cfg)
			if err == nil {
				s.Close()
				return errors.New("opened without " + verb)
			}
			if strings.Contains(err.Error(), fmt.Sprintf("needs the verb %q", verb)) && strings.Count(err.Error(), "needs the verb") == 1 && errors.Is(err, store.ErrDenied) {
				return nil
			}
			return err
		})
	}
	if left := kubectl(t, c, namespace); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	apply(t, c, "rbac.yaml", namespace)
	s := openSoon(t, cfg)
	session := begin(t, s, "a")
	held := take(t, s, session.ID, "g")
	if _, err := s.KeepAlive(t.Context(), session.ID, "g"); err != nil {
		t.Error(err)
	}
	if _, err := s.Release(t.Context(), session.ID, "", "", held); err != nil {
		t.Error(err)
	}
	if err := s.End(t.Context(), session.ID, store.Closed); err != nil {
		t.Error(err)
	}
}

// openSoon opens a store when the API server has noticed the role.
func openSoon(t *testing.T, cfg kubernetes.Config) (s *kubernetes.Store) {
	t.Helper()
	storetest.Eventually(t, func() (err error) {
		s, err = kubernetes.Open(t.Context(), cfg)
		return err
	})
	t.Cleanup(s.Close)
	return s
}

// A URL names the namespace and where the credentials are, and is not repeated in errors.
func TestParse(t *testing.T) {
	got, err := kubernetes.Parse("kubernetes://prod?name=billing&kubeconfig=/etc/kube&context=east")
	if want := (kubernetes.Config{Namespace: "prod", Name: "billing", Kubeconfig: "/etc/kube", Context: "east"}); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := kubernetes.Parse("kubernetes://"); err != nil || got != (kubernetes.Config{}) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, text := range []string{
		"", "prod", "etcd://prod", "kubernetes://user:secret@prod", "kubernetes://prod:1", "kubernetes://prod/secret", "kubernetes://prod?token=secret",
		"kubernetes://prod?name=a&name=b", "kubernetes://prod#secret", "kubernetes:prod", "kubernetes://\x00secret",
	} {
		if _, err := kubernetes.Parse(text); !errors.Is(err, store.ErrInvalid) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// otherCA is an authority that signed nothing.
const otherCA = `-----BEGIN CERTIFICATE-----
MIIBdzCCAR2gAwIBAgIUew8/odJFs4Ogp7XSD3gOgCwrK/IwCgYIKoZIzj0EAwIw
EDEOMAwGA1UEAwwFb3RoZXIwIBcNMjYxMTE2MTgxOTU0WhgPMjEyNjEwMjMxODE5
NTRaMBAxDjAMBgNVBAMMBW90aGVyMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE
66nvPWIqSQ+639hjSSU9JevnjX182DIXaxt74HAvPAUdvNnhKR/niUuCJR+irKrv
LTRSaywrOpOLdUYUAC8mJKNTMFEwHQYDVR0OBBYEFPOvMLFu/K30fzVM0pkmx5+B
R9mUMB8GA1UdIwQYMBaAFPOvMLFu/K30fzVM0pkmx5+BR9mUMA8GA1UdEwEB/wQF
MAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIgIxBApLozR+RxkbH54+1mOzSH2OP/eOAa
/VZUJv05NXECIQDe1d9LJ3WPi0mw9qijxktmayezxJfj5JAzxXkYDI1X3g==
-----END CERTIFICATE-----
`
