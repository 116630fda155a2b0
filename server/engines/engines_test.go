package engines_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/server/engines"
	"github.com/tenurehq/tenure/store"
)

// An unknown scheme, and a word that is no URL, get an error that lists the forms of all engines
// and no password.
func TestUnknown(t *testing.T) {
	for _, raw := range []string{"", "mysql://app:secret@host/db?password=secret", "etcd", "postgres", "host:2379", "raft"} {
		err := engines.Check(raw, engines.Options{})
		if !errors.Is(err, store.ErrInvalid) {
			t.Fatalf("%q: %v", raw, err)
		}
		for _, e := range engines.All() {
			if !strings.Contains(err.Error(), e.Form) {
				t.Errorf("%q: %v does not list %s", raw, err, e.Form)
			}
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("the error has the password: %v", err)
		}
	}
}

// The form of every engine is accepted, and its limits are known without connecting.
func TestForms(t *testing.T) {
	for _, e := range engines.All() {
		url := strings.NewReplacer("host:port", "127.0.0.1:1").Replace(e.Form)
		if err := engines.Check(url, engines.Options{}); err != nil {
			t.Errorf("%s: %v", url, err)
		}
		if c := e.Caps; c.Engine == "" || c.MinTTL <= 0 || c.MaxTTL <= c.MinTTL || c.Late(c.MinTTL) <= 0 || c.Batch < 1 {
			t.Errorf("%s: %+v", e.Name, c)
		}
	}
}

// Options complete or override the URL of etcd. Other engines take the password alone.
func TestOptions(t *testing.T) {
	cfg, ok, err := engines.Etcd("etcds://a%40b:old@h1:1,h2:2/jobs", engines.Options{Password: "new"})
	if err != nil || !ok || cfg.Username != "a@b" || cfg.Password != "new" || cfg.Prefix != "/jobs" || cfg.TLS == nil || strings.Join(cfg.Endpoints, " ") != "https://h1:1 https://h2:2" {
		t.Errorf("%+v, %v, %v", cfg, ok, err)
	}
	for raw, o := range map[string]engines.Options{
		"etcd://a:1,,b:1":            {},
		"etcd://":                    {},
		"etcd://u:%zz@a:1":           {},
		"postgres://host/db":         {Password: "secret"},
		"postgres://app:old@host/db": {Password: "secret"},
		"postgres://app@host/db":     {Prefix: "/x"},
	} {
		if err := engines.Check(raw, o); !errors.Is(err, store.ErrInvalid) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s with %+v: %v", raw, o, err)
		}
	}
	if err := engines.Check("postgres://app@host/db?sslmode=disable", engines.Options{Password: "a @:/?%"}); err != nil {
		t.Error(err)
	}
}
