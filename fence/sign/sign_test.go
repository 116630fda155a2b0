package sign_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/httpfence"
	"github.com/tenurehq/tenure/fence/sign"
)

var claims = sign.Claims{Deployment: "prod", Candidate: "node-1", Group: "billing", Token: 7, Session: fence.SessionDigest("s")}

func newSigner(t testing.TB) *sign.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := sign.NewSigner(private)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func trusting(t testing.TB, signers ...*sign.Signer) (*sign.Verifier, *sign.KeySet) {
	t.Helper()
	var keys []sign.Key
	for _, s := range signers {
		keys = append(keys, s.Key)
	}
	set, err := sign.NewKeySet(keys...)
	if err != nil {
		t.Fatal(err)
	}
	return sign.NewVerifier(set), set
}

func stamp(t testing.TB, s *sign.Signer, c sign.Claims) fence.Stamp {
	t.Helper()
	signature, err := s.Sign(c)
	if err != nil {
		t.Fatal(err)
	}
	return fence.Stamp{Deployment: c.Deployment, Group: c.Group, Token: c.Token, Session: c.Session, Signature: signature}
}

func refused(t *testing.T, v *sign.Verifier, s fence.Stamp, what string) {
	t.Helper()
	var bad *fence.InvalidError
	if _, err := v.Check(s); !errors.As(err, &bad) || bad.Field != "signature" || !errors.Is(err, fence.ErrRefused) {
		t.Errorf("%s: %v", what, err)
	}
}

// A valid signature is accepted twice. It is refused after the change of any bit, and for any other grant.
func TestEveryBit(t *testing.T) {
	signer := newSigner(t)
	v, _ := trusting(t, signer)
	good := stamp(t, signer, claims)
	for range 2 {
		got, err := v.Check(good)
		if err != nil || got != claims {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	for i := range good.Signature {
		for bit := range 8 {
			b := []byte(good.Signature)
			b[i] ^= 1 << bit
			s := good
			s.Signature = string(b)
			refused(t, v, s, "a changed bit")
		}
	}
	for what, change := range map[string]func(*fence.Stamp){
		"deployment": func(s *fence.Stamp) { s.Deployment = "test" },
		"group":      func(s *fence.Stamp) { s.Group = "orders" },
		"token":      func(s *fence.Stamp) { s.Token = fence.MaxToken },
		"session":    func(s *fence.Stamp) { s.Session = fence.SessionDigest("other") },
		"no session": func(s *fence.Stamp) { s.Session = "" },
		"unsigned":   func(s *fence.Stamp) { s.Signature, s.Token = "", fence.MaxToken },
		"cut":        func(s *fence.Stamp) { s.Signature = s.Signature[:len(s.Signature)-1] },
		"longer":     func(s *fence.Stamp) { s.Signature += "A" },
		"huge":       func(s *fence.Stamp) { s.Signature = strings.Repeat("A.", sign.MaxSignature) },
		"other type": func(s *fence.Stamp) {
			_, rest, _ := strings.Cut(s.Signature, ".")
			s.Signature = "eyJhbGciOiJub25lIn0." + rest
		},
	} {
		s := good
		change(&s)
		refused(t, v, s, what)
	}
	foreign := stamp(t, newSigner(t), claims)
	refused(t, v, foreign, "foreign key")
}

// During a rotation both keys are valid. A removed key is not, even for signatures that were checked before.
func TestRotation(t *testing.T) {
	old, next := newSigner(t), newSigner(t)
	v, set := trusting(t, old, next)
	a, b := stamp(t, old, claims), stamp(t, next, claims)
	for _, s := range []fence.Stamp{a, b} {
		if _, err := v.Check(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := set.Replace(next.Key); err != nil {
		t.Fatal(err)
	}
	refused(t, v, a, "revoked key")
	if _, err := v.Check(b); err != nil {
		t.Error(err)
	}
	bad := next.Key
	bad.ID = old.Key.ID
	if err := set.Replace(bad); err == nil {
		t.Error("a key under the name of another was accepted")
	}
	if _, err := v.Check(b); err != nil {
		t.Errorf("after a refused set: %v", err)
	}
}

// Keys come from a file or from the service. An invalid key set is refused, and the error names its source.
func TestKeys(t *testing.T) {
	signer := newSigner(t)
	text, err := sign.Marshal(signer.Key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "keys.json")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(string(text))
	set, err := sign.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sign.NewVerifier(set).Check(stamp(t, signer, claims)); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{"", "{}", `{"keys":[]}`, `{"keys":[{"kty":"RSA"}]}`, `{"keys":[{"kty":"OKP","crv":"Ed25519","x":"AAAA"}]}`, "keys"} {
		write(bad)
		if _, err := sign.Load(file); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(text) }))
	defer service.Close()
	keys, err := sign.Fetch(t.Context(), service.Client(), service.URL)
	if err != nil || len(keys) != 1 || keys[0] != signer.Key {
		t.Errorf("%+v, %v", keys, err)
	}
}

// A private key is read from a PEM file.
func TestLoadSigner(t *testing.T) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := sign.LoadSigner(file)
	if err != nil {
		t.Fatal(err)
	}
	v, _ := trusting(t, s)
	if _, err := v.Check(stamp(t, s, claims)); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := sign.LoadSigner(file); err == nil {
		t.Error("no key was accepted")
	}
}

// A guard that requires signatures refuses a forged token, and the mark of its sink stays.
func TestGuard(t *testing.T) {
	signer := newSigner(t)
	v, _ := trusting(t, signer)
	var mark fence.Mark
	server := httptest.NewServer(httpfence.Guard{Verify: v.Verify}.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		s, _ := httpfence.FromContext(r.Context())
		if next, err := mark.Admit(s); err == nil {
			mark = next
		}
	})))
	defer server.Close()
	post := func(s fence.Stamp) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := httpfence.Format(s, r.Header.Set); err != nil {
			t.Fatal(err)
		}
		resp, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	good := stamp(t, signer, claims)
	made := good
	made.Token, made.Signature = 1_000, ""
	stolen := good
	stolen.Token = 1_000
	if a, b, c := post(good), post(made), post(stolen); a != 200 || b == 200 || c == 200 {
		t.Errorf("answers %d, %d, %d", a, b, c)
	}
	if mark.Token != good.Token {
		t.Errorf("the mark is %d", mark.Token)
	}
	raw, _ := json.Marshal(made)
	if _, err := v.Verify(context.Background(), raw); err == nil {
		t.Error("an unsigned stamp was believed")
	}
}

// A signature that is bound to a certificate is refused from other callers, even if it is cached.
func TestBound(t *testing.T) {
	signer := newSigner(t)
	v, _ := trusting(t, signer)
	own, other := &x509.Certificate{Raw: []byte("own")}, &x509.Certificate{Raw: []byte("other")}
	bound := claims
	bound.Confirm = &sign.Confirm{Thumbprint: sign.Thumbprint(own)}
	raw, err := json.Marshal(stamp(t, signer, bound))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := v.Verify(sign.WithCertificate(t.Context(), own), raw); err != nil {
			t.Error(err)
		}
		for _, stolen := range []context.Context{t.Context(), sign.WithCertificate(t.Context(), nil), sign.WithCertificate(t.Context(), other)} {
			if _, err := v.Verify(stolen, raw); !errors.Is(err, fence.ErrRefused) {
				t.Errorf("a stolen stamp: %v", err)
			}
		}
	}
	free, _ := json.Marshal(stamp(t, signer, claims))
	handler := sign.WithPeer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := v.Verify(r.Context(), raw); err != nil {
			w.WriteHeader(http.StatusForbidden)
		}
		if _, err := v.Verify(r.Context(), free); err != nil {
			t.Error(err)
		}
	}))
	for want, c := range map[int]*tls.ConnectionState{200: {PeerCertificates: []*x509.Certificate{own}}, 403: nil} {
		r, w := httptest.NewRequest(http.MethodPost, "/", nil), httptest.NewRecorder()
		r.TLS = c
		if handler.ServeHTTP(w, r); w.Code != want {
			t.Errorf("%d instead of %d", w.Code, want)
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	signer := newSigner(b)
	v, set := trusting(b, signer)
	s := stamp(b, signer, claims)
	b.Run("first", func(b *testing.B) {
		for range b.N {
			_ = set.Replace(signer.Key)
			if _, err := v.Check(s); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("again", func(b *testing.B) {
		for range b.N {
			if _, err := v.Check(s); err != nil {
				b.Fatal(err)
			}
		}
	})
}
