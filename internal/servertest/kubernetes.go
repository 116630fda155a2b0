package servertest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// KubernetesServer is an API server of Kubernetes, without nodes and controllers.
type KubernetesServer struct {
	*Server
	// CAFile has the certificate of its authority.
	CAFile string
	// Admin is the token of a user who may do everything, User that of the user "tenure", who may
	// do what roles allow.
	Admin, User string

	key *ecdsa.PrivateKey
}

// Kubernetes starts an API server on the data of an etcd and waits until it is ready. It is
// stopped when the test ends. The first one is built from source, which takes minutes.
func Kubernetes(t testing.TB, etcd string, opts ...Option) *KubernetesServer {
	t.Helper()
	program, err := build("kubernetes", kubeAPIServer)
	if err != nil {
		unavailable(t, "Kubernetes", err)
	}
	dir := dataDir(t)
	addr, port := free(t)
	k := &KubernetesServer{CAFile: filepath.Join(dir, "certs", "apiserver.crt"), Admin: AdminToken, User: "user-token"}
	if k.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(k.key)
	if err != nil {
		t.Fatal(err)
	}
	key, users := filepath.Join(dir, "key.pem"), filepath.Join(dir, "users.csv")
	for path, text := range map[string][]byte{
		key:   pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}),
		users: fmt.Appendf(nil, "%s,admin,1,system:masters\n%s,tenure,2\n", k.Admin, k.User),
	} {
		if err := os.WriteFile(path, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	k.Server = &Server{
		t: t, name: "Kubernetes", program: program, own: true, addr: addr, url: "https://" + addr,
		args: append([]string{
			"--etcd-servers=" + etcd, "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port=" + port,
			"--cert-dir=" + filepath.Join(dir, "certs"), "--token-auth-file=" + users, "--authorization-mode=RBAC",
			"--service-account-key-file=" + key, "--service-account-signing-key-file=" + key, "--service-account-issuer=" + issuer,
			"--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none",
		}, collect(opts).args...),
	}
	k.ready = func() error { return k.Do(context.Background(), http.MethodGet, "/readyz", "", nil) }
	t.Cleanup(k.end)
	k.Start()
	return k
}

const (
	kubeAPIServer = "k8s.io/kubernetes/cmd/kube-apiserver"
	issuer        = "https://tenure.invalid"
)

// AdminToken is the token of a user who may do everything.
const AdminToken = "admin-token"

// Do sends a request as the admin.
func (k *KubernetesServer) Do(ctx context.Context, method, path, contentType string, body io.Reader) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, k.url+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+k.Admin)
	req.Header.Set("Content-Type", contentType)
	// The server makes its certificate when it starts.
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}} //nolint:gosec // loopback
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
	}
	return err
}

// ServiceToken is a token of a service account, as a pod has it.
func (k *KubernetesServer) ServiceToken(namespace, account string, expires time.Time) string {
	part := func(v any) string {
		text, err := json.Marshal(v)
		if err != nil {
			k.t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(text)
	}
	text := part(map[string]string{"alg": "ES256", "typ": "JWT"}) + "." + part(map[string]any{
		"iss": issuer, "aud": []string{issuer}, "sub": "system:serviceaccount:" + namespace + ":" + account, "exp": expires.Unix(), "iat": expires.Add(-time.Hour).Unix(),
		"kubernetes.io": map[string]any{"namespace": namespace, "serviceaccount": map[string]string{"name": account, "uid": "1"}},
	})
	digest := sha256.Sum256([]byte(text))
	r, s, err := ecdsa.Sign(rand.Reader, k.key, digest[:])
	if err != nil {
		k.t.Fatal(err)
	}
	var signature [64]byte
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return text + "." + base64.RawURLEncoding.EncodeToString(signature[:])
}
