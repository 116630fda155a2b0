package remote_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/remote"
	"github.com/tenurehq/tenure/store/remote/wire"
)

// A call that changes something and whose answer did not come is made once, and
// its outcome is unknown; keep-alives and reads are asked of another instance. So
// it is when the connection ends, when something in between answers, and when the
// service says that it does not know.
func TestUnknownIsNotRepeated(t *testing.T) {
	changes := []wire.Method{wire.Open, wire.Close, wire.Acquire, wire.Release, wire.Ask, wire.Answer, wire.RaiseEpoch, wire.SetAttributes}
	for name, fault := range map[string]http.HandlerFunc{
		"hangs up": hangUp,
		"gateway":  func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "bad gateway", http.StatusBadGateway) },
		"unknown":  refuse(wire.Problem{Status: 503, Code: wire.CodeUnknown}),
		"garbage":  func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, wire.ContentType, `[`) },
	} {
		t.Run(name, func(t *testing.T) {
			bad, good := newScripted(t), newScripted(t)
			s := connect(t, remote.Config{URLs: []string{bad.URL, good.URL}})
			for m, call := range methods(s) {
				bad.does(nil)
				good.does(nil)
				// Whoever failed is left: come back to it.
				if _, err := s.KeepAlive(t.Context(), "s1"); err != nil {
					t.Fatal(err)
				}
				if good.count(wire.KeepAlive) == 1 {
					bad, good = good, bad
				}
				bad.does(fault)
				good.does(nil)
				err := call(within(t, 10*time.Second))
				asked := bad.count(m) + good.count(m)
				switch once := slices.Contains(changes, m); {
				case !once && (err != nil || asked != 2):
					t.Errorf("%s: asked %d times: %v", m, asked, err)
				case once && (err == nil || store.Definite(err) || asked != 1):
					t.Errorf("%s: asked %d times: %v", m, asked, err)
				}
				bad.does(nil)
				good.does(nil)
				if _, err := s.KeepAlive(t.Context(), "s1"); err != nil || good.count(wire.KeepAlive) != 1 {
					t.Errorf("after %s failed the next call was not made elsewhere: %v", m, err)
				}
			}
		})
	}
}

// An instance that cannot be reached, that cannot ask its engine or that stands for
// another deployment has done nothing, so every call moves on.
func TestMovesOn(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	good := newScripted(t)
	for m, call := range methods(connect(t, remote.Config{URLs: []string{gone.URL, good.URL}})) {
		if err := call(within(t, 10*time.Second)); err != nil {
			t.Errorf("%s, with an instance that is gone: %v", m, err)
		}
	}
	for _, code := range []string{wire.CodeUnavailable, wire.CodeDeployment} {
		for m := range methods(nil) {
			bad := newScripted(t)
			s := connect(t, remote.Config{URLs: []string{bad.URL, good.URL}})
			bad.does(refuse(wire.Problem{Status: 503, Code: code}))
			good.does(nil)
			if err := methods(s)[m](within(t, 10*time.Second)); err != nil || good.count(m) != 1 {
				t.Errorf("%s, with an instance that says %s: %v", m, code, err)
			}
		}
	}
}

// An instance that takes calls and does not answer costs a keep-alive one try,
// inside its deadline, and later calls nothing.
func TestBlackHole(t *testing.T) {
	bad, good := newScripted(t), newScripted(t)
	s := connect(t, remote.Config{URLs: []string{bad.URL, good.URL}})
	bad.does(hang)
	if _, err := s.KeepAlive(within(t, 2*time.Second), "s1"); err != nil {
		t.Fatal(err)
	}
	for m, call := range methods(s) {
		if err := call(within(t, 10*time.Second)); err != nil {
			t.Errorf("%s: %v", m, err)
		}
		if m != wire.KeepAlive && bad.count(m) != 0 {
			t.Errorf("%s was given to the black hole", m)
		}
	}
}

// An instance that connects and does not go on to speak TLS is given up for another
// before anything was sent, also by a call that must not be repeated.
func TestNoHandshake(t *testing.T) {
	mute, err := net.Listen("tcp", "127.0.0.1:0") // the kernel connects, nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = mute.Close() }()
	good := httptest.NewTLSServer(newScripted(t))
	defer good.Close()
	roots := x509.NewCertPool()
	roots.AddCert(good.Certificate())
	var all sync.WaitGroup
	for m := range methods(nil) {
		if m.Repeatable() {
			continue
		}
		s := connect(t, remote.Config{URLs: []string{good.URL, "https://" + mute.Addr().String()}, TLS: &tls.Config{RootCAs: roots}})
		remote.Prefer(s, 1)
		all.Go(func() {
			if err := methods(s)[m](within(t, 4*time.Second)); err != nil {
				t.Errorf("%s: %v", m, err)
			}
		})
	}
	all.Wait()
}

// The service is told how long its caller waits and which deployment it means.
func TestSaysWhatItMeans(t *testing.T) {
	srv := newScripted(t)
	s := connect(t, remote.Config{URLs: []string{srv.URL}})
	if _, err := s.Meta(within(t, 3*time.Second)); err != nil {
		t.Fatal(err)
	}
	ms, err := strconv.Atoi(srv.last.Get(wire.TimeoutHeader))
	if err != nil || ms < 1 || ms > 3000 {
		t.Errorf("the timeout is said to be %q", srv.last.Get(wire.TimeoutHeader))
	}
	if got := srv.last.Get(wire.DeploymentHeader); got != "d1" {
		t.Errorf("the deployment is said to be %q", got)
	}
}

// A redirection is followed nowhere: it would repeat a call, and show the token to
// whoever it leads to.
func TestNoRedirection(t *testing.T) {
	elsewhere := newScripted(t)
	srv := newScripted(t)
	s := connect(t, remote.Config{URLs: []string{srv.URL}, Bearer: func(context.Context) (string, error) { return "sesame", nil }})
	srv.does(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusTemporaryRedirect)
	})
	for m, call := range methods(s) {
		if err := call(t.Context()); err == nil || store.Definite(err) {
			t.Errorf("%s: %v", m, err)
		}
		if elsewhere.count(m) != 0 {
			t.Errorf("%s was followed", m)
		}
	}
}

// The bearer token is had anew for each call, and a refusal is ErrDenied, without
// the token in it.
func TestDenied(t *testing.T) {
	srv := newScripted(t)
	n := 0
	s := connect(t, remote.Config{URLs: []string{srv.URL}, Bearer: func(context.Context) (string, error) {
		n++
		return fmt.Sprint("sesame-", n), nil
	}})
	for _, status := range []int{401, 403} {
		srv.does(refuse(wire.Problem{Status: status, Code: "denied", Detail: "not you"}))
		_, err := s.Read(t.Context(), "g")
		if !errors.Is(err, remote.ErrDenied) || !strings.Contains(err.Error(), "not you") || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%d: %v", status, err)
		}
	}
	if got := srv.last.Get("Authorization"); got != "Bearer sesame-3" {
		t.Errorf("authorization is %q", got)
	}
}

// What cannot work is refused before anything is asked, with the field and without
// a password.
func TestConfig(t *testing.T) {
	bearer := func(context.Context) (string, error) { return "t", nil }
	for name, cfg := range map[string]remote.Config{
		"urls":                     {},
		"such as https://":         {URLs: []string{"localhost:7600"}},
		"no user and password":     {URLs: []string{"https://u:sesame@h"}},
		"such as https://10":       {URLs: []string{"ftp://u:sesame@h"}},
		"must begin with https://": {URLs: []string{"http://h"}, TLS: &tls.Config{}},
		"unencrypted":              {URLs: []string{"http://10.0.0.1:7600"}, Bearer: bearer},
		"heartbeat":                {URLs: []string{"https://h"}, Heartbeat: time.Millisecond},
	} {
		_, err := remote.Open(t.Context(), cfg)
		if !errors.Is(err, store.ErrInvalid) || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, "application/json", `{}`) }))
	defer other.Close()
	if _, err := remote.Open(t.Context(), remote.Config{URLs: []string{other.URL}}); err == nil || !strings.Contains(err.Error(), other.URL) {
		t.Errorf("a service that is none: %v", err)
	}
}

// Hundreds of calls that hang do not stand in the way of a keep-alive.
func TestKeepAliveLane(t *testing.T) {
	srv := newScripted(t)
	s := connect(t, remote.Config{URLs: []string{srv.URL}})
	srv.does(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, string(wire.Read)) {
			hang(w, r)
			return
		}
		fine(w, r)
	})
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() { _, _ = s.Read(ctx, "g") })
	}
	for srv.count(wire.Read) < 64 {
		time.Sleep(time.Millisecond)
	}
	if _, err := s.KeepAlive(within(t, 10*time.Second), "s1"); err != nil {
		t.Error(err)
	}
	if n := srv.count(wire.Read); n != 64 {
		t.Errorf("%d calls at a time", n)
	}
	cancel()
	all.Wait()
}

// A service of the version before refuses the fields that it does not know. The session is
// opened without them.
func TestOpenAtOlderService(t *testing.T) {
	service := newScripted(t)
	service.does(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || bytes.Contains(body, []byte(`"instance"`)) {
			refuse(wire.Problem{Status: 400, Code: "bad_body"})(w, r)
			return
		}
		answer(w, 200, wire.ContentType, `{"session":"s1","ttl_ms":1000}`)
	})
	s := connect(t, remote.Config{URLs: []string{service.URL}})
	o := store.OpenOptions{Scope: store.Scope{"g"}, Instance: "0123456789abcdef", Attempt: "1"}
	session, err := s.Open(within(t, 10*time.Second), tenure.Candidate{ID: "a"}, time.Second, o)
	if err != nil || session.ID != "s1" || service.count(wire.Open) != 2 {
		t.Errorf("%+v, %v, asked %d times", session, err, service.count(wire.Open))
	}
}
