package kubernetes_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	coordination "k8s.io/api/coordination/v1"
	"k8s.io/client-go/rest"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kubernetes"
	"github.com/tenurehq/tenure/store/storetest"
)

func leases(namespace string) string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + namespace + "/leases"
}

// kubectl reads Leases as the admin: what kubectl shows.
func kubectl(t *testing.T, c *cluster, namespace string) []coordination.Lease {
	t.Helper()
	client, err := rest.HTTPClientFor(c.config(namespace).REST)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Get(c.URL() + leases(namespace))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var all coordination.LeaseList
	if err := json.NewDecoder(resp.Body).Decode(&all); err != nil {
		t.Fatal(err)
	}
	return all.Items
}

func begin(t *testing.T, s store.Store, id string) store.Session {
	t.Helper()
	session, err := s.Open(t.Context(), tenure.Candidate{ID: id}, time.Minute, store.OpenOptions{Scope: store.Scope{"*"}})
	if err != nil {
		t.Fatal(err)
	}
	return session
}

func take(t *testing.T, s store.Store, id store.SessionID, group string) store.Record {
	t.Helper()
	v, err := s.Read(t.Context(), group)
	if err != nil {
		t.Fatal(err)
	}
	held, err := s.Acquire(t.Context(), id, v.Record)
	if err != nil {
		t.Fatal(err)
	}
	return held[0]
}

// People see with kubectl who leads and how often that changed.
func testReadable(t *testing.T, c *cluster) {
	namespace := c.namespace(t)
	s := open(t, c.config(namespace))
	session := begin(t, s, "node-1")
	held := take(t, s, session.ID, "billing_eu")
	if _, err := s.Release(t.Context(), session.ID, "", "", held); err != nil {
		t.Fatal(err)
	}
	take(t, s, session.ID, "billing_eu")
	found := map[string]coordination.LeaseSpec{}
	for _, l := range kubectl(t, c, namespace) {
		found[l.Name] = l.Spec
	}
	record := found["tenure.record.billing.x5f.eu"]
	if record.HolderIdentity == nil || *record.HolderIdentity != "node-1" || record.LeaseTransitions == nil || *record.LeaseTransitions != 2 {
		t.Errorf("the record shows %+v", record)
	}
	shown := found["tenure.session."+string(session.ID)]
	if shown.HolderIdentity == nil || *shown.HolderIdentity != "node-1" || shown.LeaseDurationSeconds == nil || *shown.LeaseDurationSeconds != 60 {
		t.Errorf("the session shows %+v", shown)
	}
	if beat := found["tenure.beat."+string(session.ID)]; beat.RenewTime == nil || time.Since(beat.RenewTime.Time) > time.Minute {
		t.Errorf("the beat shows %+v", beat)
	}
}

// Whoever deletes Leases by hand, or copies them into another cluster, is noticed: who led stops,
// and nobody is granted anything until the epoch is raised. Then tokens are above all that
// went before.
func testDeleted(t *testing.T, c *cluster) {
	remove := func(names ...string) func(*testing.T, string) {
		return func(t *testing.T, namespace string) {
			for _, name := range names {
				c.do(t, http.MethodDelete, leases(namespace)+"/"+name, "", "")
			}
		}
	}
	all := func(t *testing.T, namespace string) { c.do(t, http.MethodDelete, leases(namespace), "", "") }
	for name, test := range map[string]struct {
		lose func(*testing.T, string)
		says string
		// unseen: who starts afterwards cannot know it. harmless: nothing is lost for who runs.
		unseen, harmless bool
	}{
		"record":           {lose: remove("tenure.record.g"), says: `"g"`},
		"meta":             {lose: remove("tenure.meta"), says: "tenure.meta was deleted"},
		"incarnation":      {lose: remove("tenure.incarnation"), says: "replaced", harmless: true},
		"record and proof": {lose: remove("tenure.record.g", "tenure.grant.g"), says: `"g"`, unseen: true},
		"all":              {lose: all, says: "deleted", unseen: true},
		"copied": {says: "replaced", lose: func(t *testing.T, namespace string) {
			before := kubectl(t, c, namespace)
			all(t, namespace)
			for _, l := range before {
				l.ResourceVersion, l.UID = "", ""
				text, err := json.Marshal(l)
				if err != nil {
					t.Fatal(err)
				}
				c.do(t, http.MethodPost, leases(namespace), "application/json", string(text))
			}
		}},
	} {
		if !test.harmless {
			t.Run(name+", fleet running", func(t *testing.T) {
				t.Parallel()
				cfg := c.config(c.namespace(t))
				s := open(t, cfg)
				session := begin(t, s, "a")
				held := take(t, s, session.ID, "g")
				test.lose(t, cfg.Namespace)
				refuses(t, s, held, test.says)
				if _, err := s.KeepAlive(t.Context(), session.ID, "g"); err == nil {
					t.Error("the session is kept alive")
				}
				refuses(t, open(t, cfg), held, test.says)
				recovers(t, cfg, held.Token)
			})
		}
		if !test.unseen {
			t.Run(name+", fleet restarted", func(t *testing.T) {
				t.Parallel()
				cfg := c.config(c.namespace(t))
				s := open(t, cfg)
				held := take(t, s, begin(t, s, "a").ID, "g")
				s.Close()
				test.lose(t, cfg.Namespace)
				refuses(t, open(t, cfg), held, test.says)
				recovers(t, cfg, held.Token)
			})
		}
	}
	t.Run("session", func(t *testing.T) {
		t.Parallel()
		cfg := c.config(c.namespace(t))
		s := open(t, cfg)
		session := begin(t, s, "a")
		held := take(t, s, session.ID, "g")
		remove("tenure.beat."+string(session.ID))(t, cfg.Namespace)
		if _, err := s.KeepAlive(t.Context(), session.ID); !errors.Is(err, store.ErrSessionDead) {
			t.Errorf("after its beat was deleted a keep-alive answers %v", err)
		}
		if next := take(t, s, begin(t, s, "b").ID, "g"); next.Token <= held.Token {
			t.Errorf("token %d after %d", next.Token, held.Token)
		}
	})
}

// refuses: nobody is granted anything, and everybody is told why.
func refuses(t *testing.T, s store.Store, held store.Record, says string) {
	t.Helper()
	session, err := s.Open(t.Context(), tenure.Candidate{ID: "late"}, time.Minute, store.OpenOptions{Scope: store.Scope{"*"}})
	if err == nil {
		var v store.View
		if v, err = s.Read(t.Context(), "g"); err == nil && v.State == tenure.Vacant {
			var got []store.Record
			if got, err = s.Acquire(t.Context(), session.ID, v.Record); err == nil {
				t.Errorf("granted token %d, %d was granted before", got[0].Token, held.Token)
			}
		}
	}
	if !errors.Is(err, store.ErrRewound) {
		t.Errorf("a new candidate is told: %v", err)
	}
	if m, err := s.Meta(t.Context()); err != nil || !m.Rewound || !strings.Contains(m.Why, says) {
		t.Errorf("meta: %+v, %v; want rewound, because of %q", m, err, says)
	}
}

// recovers: after a raise the next token is above all that went before.
func recovers(t *testing.T, cfg kubernetes.Config, above fence.Token) {
	t.Helper()
	s := open(t, cfg)
	m, err := s.Meta(t.Context())
	if err == nil {
		_, err = s.RaiseEpoch(t.Context(), m.Epoch+1)
	}
	if err != nil {
		t.Fatal(err)
	}
	id := begin(t, s, "next").ID
	v, err := s.Read(t.Context(), "g")
	if err != nil {
		t.Fatal(err)
	}
	if v.Holder != "" && v.State == tenure.Led {
		if err := s.End(t.Context(), v.Holder, store.Closed); err != nil {
			t.Fatal(err)
		}
	}
	if held := take(t, s, id, "g"); held.Token <= above {
		t.Errorf("token %d after %d", held.Token, above)
	}
}

// apply applies a manifest of deploy/kubernetes in a namespace.
func apply(t *testing.T, c *cluster, file, namespace string) {
	t.Helper()
	text, err := os.ReadFile("../../deploy/kubernetes/" + file)
	if err != nil {
		t.Fatal(err)
	}
	for doc := range strings.SplitSeq(strings.ReplaceAll(string(text), "namespace: default", "namespace: "+namespace), "\n---\n") {
		_, kind, _ := strings.Cut(doc, "\nkind: ")
		kind, _, _ = strings.Cut(kind, "\n")
		path := map[string]string{
			"ServiceAccount":                   "/api/v1/namespaces/%s/serviceaccounts/tenure",
			"Role":                             "/apis/rbac.authorization.k8s.io/v1/namespaces/%s/roles/tenure",
			"RoleBinding":                      "/apis/rbac.authorization.k8s.io/v1/namespaces/%s/rolebindings/tenure",
			"ValidatingAdmissionPolicy":        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/tenure-protect",
			"ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/tenure-protect",
		}[kind]
		if strings.Contains(path, "%") {
			path = fmt.Sprintf(path, namespace)
		}
		c.do(t, http.MethodPatch, path+"?fieldManager=test&force=true", "application/apply-patch+yaml", doc)
	}
}

// With the policy of deploy/kubernetes nobody deletes what tokens are computed from, and
// elections go on as before.
func testProtected(t *testing.T, c *cluster) {
	cfg := c.config(c.namespace(t))
	s := open(t, cfg)
	session := begin(t, s, "a")
	held := take(t, s, session.ID, "g")
	apply(t, c, "protect.yaml", "")
	defer c.do(t, http.MethodDelete, "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/tenure-protect", "", "")
	remove := func(name, query string) error {
		return c.Do(context.WithoutCancel(t.Context()), http.MethodDelete, leases(cfg.Namespace)+"/tenure."+name+query, "", nil)
	}
	storetest.Eventually(t, func() error { // the API server takes a moment
		if remove("meta", "?dryRun=All") == nil {
			return errors.New("meta may be deleted")
		}
		return nil
	})
	for _, name := range []string{"meta", "incarnation", "record.g", "grant.g"} {
		if err := remove(name, ""); err == nil || !strings.Contains(err.Error(), "could be repeated") {
			t.Errorf("deleting %s: %v", name, err)
		}
	}
	name := take(t, s, session.ID, "set--name")
	free, err := s.Release(t.Context(), session.ID, "", store.Resigned, name)
	if err == nil {
		err = s.Retire(t.Context(), free[0])
	}
	if err != nil {
		t.Errorf("removing a name: %v", err)
	}
	if err := s.End(t.Context(), session.ID, store.Closed); err != nil {
		t.Error(err)
	}
	if next := take(t, s, begin(t, s, "b").ID, "g"); next.Token <= held.Token {
		t.Errorf("token %d after %d", next.Token, held.Token)
	}
}
