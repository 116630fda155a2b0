package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"regexp"
	"time"

	coordination "k8s.io/api/coordination/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/kv"
)

// Config configures a store in Leases. The zero value is complete in a pod.
type Config struct {
	// Namespace of the Leases. It must exist. Default: the pod's, or that of the kubeconfig.
	Namespace string
	// Name begins the name of every Lease. Deployments that share a namespace need different
	// ones. Default "tenure".
	Name string
	// REST is client-go's configuration of the connection. Default: from the kubeconfig, or from
	// the pod's service account.
	REST *rest.Config
	// Kubeconfig is a file. Default: $KUBECONFIG, then ~/.kube/config. Context is one of its
	// contexts. Default: the current one.
	Kubeconfig, Context string
	// MinTTL is the shortest TTL of a session. Default 1 s.
	MinTTL time.Duration
	// Deployment names a store that is used for the first time. Default: random. A store that
	// takes the place of another one needs its name, because sinks know it.
	Deployment string
}

const (
	defaultName = "tenure"
	// maxPrefix is the maximum length of Config.Name: the longest key must fit after it.
	maxPrefix = 40
	minTTL    = time.Second
	maxTTL    = 24 * time.Hour
	// lateness: a session's beat is read eight times during its TTL.
	lateness = time.Second
)

var nameRule = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// Caps returns the capabilities of a store with the default configuration.
func Caps() store.Caps { return (&driver{cfg: Config{MinTTL: minTTL}}).Caps().Store() }

// Parse reads a URL: kubernetes://NAMESPACE?name=NAME&kubeconfig=FILE&context=CONTEXT. All parts
// have the defaults of Config.
func Parse(text string) (Config, error) {
	u, err := url.Parse(text)
	// The error does not repeat the URL, which may have a secret.
	if err != nil || u.Scheme != "kubernetes" || u.User != nil || u.Port() != "" || u.Path != "" && u.Path != "/" || u.Opaque != "" || u.Fragment != "" {
		return Config{}, &store.ArgumentError{Field: "store", Rule: "must be kubernetes://NAMESPACE?name=NAME&kubeconfig=FILE&context=CONTEXT"}
	}
	c := Config{Namespace: u.Hostname()}
	for key, values := range u.Query() {
		into := map[string]*string{"name": &c.Name, "kubeconfig": &c.Kubeconfig, "context": &c.Context}[key]
		if into == nil || len(values) != 1 {
			return Config{}, &store.ArgumentError{Field: "store", Rule: fmt.Sprintf("parameter %q: use name, kubeconfig and context, each once", key)}
		}
		*into = values[0]
	}
	return c, nil
}

// Store is a store.Store in Leases.
type Store = kv.Store

var _ store.Store = (*Store)(nil)

// Open checks the namespace and the rights, and reads the description of the deployment, or writes
// it at first use. It fails within the context's deadline (5 s for each step if it has none).
func Open(ctx context.Context, cfg Config) (*Store, error) {
	d, err := newDriver(cfg)
	if err != nil {
		return nil, err
	}
	if err := d.check(ctx); err != nil {
		d.Close()
		return nil, err
	}
	return kv.Open(ctx, d, kv.Config{Deployment: cfg.Deployment})
}

// Close ends watches and makes later calls fail.
func (d *driver) Close() { d.cancel() }

func newDriver(cfg Config) (*driver, error) {
	cfg.Name, cfg.MinTTL = cmp.Or(cfg.Name, defaultName), cmp.Or(cfg.MinTTL, minTTL)
	if cfg.REST == nil {
		rules := clientcmd.NewDefaultClientConfigLoadingRules()
		rules.ExplicitPath = cfg.Kubeconfig
		loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: cfg.Context})
		var err error
		if cfg.REST, err = loader.ClientConfig(); err != nil {
			if clientcmd.IsEmptyConfig(err) {
				return nil, &store.ArgumentError{Field: "kubernetes", Rule: "no API server is known: this process runs in no pod, and there is no kubeconfig; set KUBECONFIG, or add ?kubeconfig=PATH to the URL"}
			}
			return nil, fmt.Errorf("kubernetes: find the API server: %w: %w", store.ErrInvalid, err)
		}
		if cfg.Namespace == "" {
			if cfg.Namespace, _, err = loader.Namespace(); err != nil {
				return nil, fmt.Errorf("kubernetes: find the namespace: %w: %w", store.ErrInvalid, err)
			}
		}
	}
	switch {
	case !nameRule.MatchString(cfg.Namespace) || len(cfg.Namespace) > 63:
		return nil, &store.ArgumentError{Field: "namespace", Value: cfg.Namespace, Rule: "1 to 63 of a-z 0-9 -, beginning and ending with a letter or digit"}
	case !nameRule.MatchString(cfg.Name) || len(cfg.Name) > maxPrefix:
		return nil, &store.ArgumentError{Field: "name", Value: cfg.Name, Rule: fmt.Sprintf("1 to %d of a-z 0-9 -, beginning and ending with a letter or digit", maxPrefix)}
	case cfg.MinTTL < 100*time.Millisecond || cfg.MinTTL > maxTTL:
		return nil, &store.ArgumentError{Field: "min ttl", Value: cfg.MinTTL, Rule: "100ms to 24h"}
	}
	scheme := runtime.NewScheme()
	if err := coordination.AddToScheme(scheme); err != nil {
		return nil, err
	}
	meta.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"}) // for decoding errors
	cfg.REST = rest.CopyConfig(cfg.REST)
	cfg.REST.APIPath, cfg.REST.GroupVersion = "/apis", &coordination.SchemeGroupVersion
	cfg.REST.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	cfg.REST.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	cfg.REST.ContentType = runtime.ContentTypeJSON
	// By default client-go limits calls to 5 per second.
	cfg.REST.QPS, cfg.REST.RateLimiter = -1, nil
	// With HTTP/2 all calls share one connection, and client-go takes 45 s to notice that it is
	// dead.
	cfg.REST.NextProtos = []string{"http/1.1"}
	client, err := rest.RESTClientFor(cfg.REST)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: connect to %s: %w: %w", cfg.REST.Host, store.ErrInvalid, err)
	}
	d := &driver{cfg: cfg, rest: client, params: runtime.NewParameterCodec(scheme), slots: make(chan struct{}, maxCalls), seen: map[string]kv.Item{}, refused: map[string]time.Time{}}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d, nil
}
