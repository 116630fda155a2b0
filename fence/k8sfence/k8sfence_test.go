package k8sfence_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/fencetest"
	"github.com/tenurehq/tenure/fence/k8sfence"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/internal/servertest"
)

var _ fence.Sealer = (*k8sfence.Fence[*core.ConfigMap])(nil)

// contract starts an API server on first use. A child process never uses it.
type contract struct {
	t    testing.TB
	once sync.Once
	s    *servertest.KubernetesServer
}

func (k *contract) server() *servertest.KubernetesServer {
	k.once.Do(func() {
		k.s = servertest.Kubernetes(k.t, enginetest.Cluster(k.t, 1, enginetest.FastTicks()).Members[0].Endpoint())
	})
	return k.s
}

// configMaps is a client for ConfigMaps. It may drop the resourceVersion.
type configMaps struct {
	rest          rest.Interface
	unconditional bool
}

func dial(url string) (c configMaps, err error) {
	scheme := runtime.NewScheme()
	if err := core.AddToScheme(scheme); err != nil {
		return c, err
	}
	c.rest, err = rest.RESTClientFor(&rest.Config{
		Host: url, APIPath: "/api", BearerToken: servertest.AdminToken, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
		ContentConfig:   rest.ContentConfig{GroupVersion: &core.SchemeGroupVersion, NegotiatedSerializer: serializer.NewCodecFactory(scheme)},
	})
	return c, err
}

func (c configMaps) Get(ctx context.Context, name string, _ meta.GetOptions) (*core.ConfigMap, error) {
	o := &core.ConfigMap{}
	return o, c.rest.Get().Namespace("default").Resource("configmaps").Name(name).Do(ctx).Into(o)
}

func (c configMaps) Update(ctx context.Context, object *core.ConfigMap, _ meta.UpdateOptions) (*core.ConfigMap, error) {
	if c.unconditional {
		object.ResourceVersion = ""
	}
	o := &core.ConfigMap{}
	return o, c.rest.Put().Namespace("default").Resource("configmaps").Name(object.Name).Body(object).Do(ctx).Into(o)
}

func (c configMaps) create(ctx context.Context, labels map[string]string) (string, error) {
	name := "r" + strconv.FormatUint(rand.Uint64(), 36)
	object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: name, Labels: labels}}
	return name, c.rest.Post().Namespace("default").Resource("configmaps").Body(object).Do(ctx).Error()
}

type write func(ctx context.Context, s fence.Stamp, payload string) error

// The effects are the lines of one value.
func (k *contract) sink(name string, unconditional bool, mistake func(*k8sfence.Fence[*core.ConfigMap], write) write) fencetest.Sink {
	return fencetest.Sink{
		Name:     "Kubernetes" + name,
		Patience: 3 * time.Minute, // the server takes half a minute to restart on a busy machine
		Create: func(t testing.TB) string {
			c, err := dial(k.server().URL())
			if err != nil {
				t.Fatal(err)
			}
			name, err := c.create(context.Background(), nil)
			if err != nil {
				t.Fatal(err)
			}
			return k.server().URL() + "\n" + name
		},
		Restart: func(testing.TB) { k.server().Restart() },
		Open: func(where string) (fencetest.Resource, error) {
			url, name, _ := strings.Cut(where, "\n")
			c, err := dial(url)
			if err != nil {
				return fencetest.Resource{}, err
			}
			c.unconditional = unconditional
			f, err := k8sfence.New(c, name)
			if err != nil {
				return fencetest.Resource{}, err
			}
			r := fencetest.Resource{
				Write: func(ctx context.Context, s fence.Stamp, payload string) error {
					return f.Update(ctx, s, func(o *core.ConfigMap) error {
						fencetest.Between(ctx)
						o.Data = map[string]string{"effects": o.Data["effects"] + payload + "\n"}
						return nil
					})
				},
				Effects: func(ctx context.Context) ([]string, error) {
					o, err := c.Get(ctx, name, meta.GetOptions{})
					return strings.FieldsFunc(o.Data["effects"], func(c rune) bool { return c == '\n' }), err
				},
				Mark: f.Mark, Seal: f.Seal, Advance: f.Advance,
			}
			if mistake != nil {
				r.Write = mistake(f, r.Write)
			}
			return r, nil
		},
	}
}

func (k *contract) good() fencetest.Sink { return k.sink("", false, nil) }

// twins have typical mistakes.
func (k *contract) twins() map[fencetest.Promise]fencetest.Sink {
	return map[fencetest.Promise]fencetest.Sink{
		fencetest.SealWaits: k.sink(", no resourceVersion", true, nil),
		fencetest.SlipRefused: k.sink(", no slip rule", false, func(f *k8sfence.Fence[*core.ConfigMap], next write) write {
			return func(ctx context.Context, s fence.Stamp, payload string) error {
				if err := f.Advance(ctx, s); err != nil {
					return err
				}
				return next(ctx, s, payload)
			}
		}),
		fencetest.StaleRefused: k.sink(", the token of the object instead of the writer's", false, func(f *k8sfence.Fence[*core.ConfigMap], next write) write {
			return func(ctx context.Context, s fence.Stamp, payload string) error {
				m, err := f.Mark(ctx)
				if err != nil {
					return err
				}
				s.Token = max(s.Token, m.Token)
				return next(ctx, s, payload)
			}
		}),
	}
}

func TestMain(m *testing.M) {
	k := new(contract)
	all := []fencetest.Sink{k.good()}
	for _, twin := range k.twins() {
		all = append(all, twin)
	}
	fencetest.Child(all...)
	os.Exit(m.Run())
}

// A real API server passes the tests of a sink, and every twin with a mistake is caught.
func TestSink(t *testing.T) {
	k := &contract{t: t}
	fencetest.Run(t, k.good())
	for promise, twin := range k.twins() {
		t.Run(twin.Name, func(t *testing.T) {
			twin.Patience = 10 * time.Second
			fencetest.Breaks(t, twin, promise)
		})
	}
	t.Run("policy", func(t *testing.T) { policy(t, k) })
}

// With the policy the API server refuses updates without a token, with a lower one or with that of
// another group, and the deletion, also from writers that send no resourceVersion. Objects without
// a label or a mark are not affected.
func policy(t *testing.T, k *contract) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	text, err := os.ReadFile("../../deploy/kubernetes/fence.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for i, part := range bytes.Split(text, []byte("\n---\n")) {
		path := "/apis/admissionregistration.k8s.io/v1/" + []string{"validatingadmissionpolicies", "validatingadmissionpolicybindings"}[i]
		if err := k.server().Do(ctx, http.MethodPost, path, "application/yaml", bytes.NewReader(part)); err != nil {
			t.Fatal(err)
		}
	}
	c, err := dial(k.server().URL())
	if err != nil {
		t.Fatal(err)
	}
	c.unconditional = true
	fenced, err := c.create(ctx, map[string]string{"tenure/fenced": "true"})
	free, ferr := c.create(ctx, nil)
	if err = errors.Join(err, ferr); err != nil {
		t.Fatal(err)
	}
	put := func(name, token, group string) error {
		o := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: name}}
		if token != "" {
			o.Annotations = map[string]string{k8sfence.TokenNote: token, k8sfence.GroupNote: group, k8sfence.DeploymentNote: "prod"}
		}
		if name == fenced {
			o.Labels = map[string]string{"tenure/fenced": "true"}
		}
		_, err := c.Update(ctx, o, meta.UpdateOptions{})
		return err
	}
	remove := func(name string) error {
		return c.rest.Delete().Namespace("default").Resource("configmaps").Name(name).Do(ctx).Error()
	}
	if err := put(fenced, "9", "billing"); err != nil {
		t.Fatal(err)
	}
	// The API server loads a policy some time after it was created. Until then anybody may move the
	// object to another group.
	group := "billing"
	for n := 0; ; n++ {
		err := put(fenced, "9", strconv.Itoa(n))
		if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
			break
		}
		if err != nil {
			t.Fatalf("the policy has no effect: %v", err)
		}
		group = strconv.Itoa(n)
	}
	for _, tt := range []struct {
		name, token, group string
		ok                 bool
	}{
		{fenced, "", "", false},
		{fenced, "8", group, false},
		{fenced, "x", group, false},
		{fenced, "10", "foreign", false},
		{fenced, "9", group, true},
		{fenced, "10", group, true},
		{fenced, "9", group, false},
		{free, "9", group, true},
		{free, "8", group, true},
		{free, "", "", true},
	} {
		if err := put(tt.name, tt.token, tt.group); (err == nil) != tt.ok {
			t.Errorf("%+v: %v", tt, err)
		}
	}
	if err := remove(fenced); err == nil {
		t.Error("an object with a mark was deleted")
	}
	if err := remove(free); err != nil {
		t.Error(err)
	}
	f, err := k8sfence.New(c, fenced)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Seal(ctx, fence.Stamp{Deployment: "prod", Group: group, Token: 11}); err != nil {
		t.Errorf("a leader's write, with the policy: %v", err)
	}
}
