package httpfence

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tenurehq/tenure/fence"
)

// The headers of a stamp.
const (
	HeaderToken      = "Fencing-Token"
	HeaderSeq        = "Fencing-Seq"
	HeaderGroup      = "Fencing-Group"
	HeaderDeployment = "Fencing-Deployment"
	HeaderSession    = "Fencing-Session"   // optional: the session that the token was granted to
	HeaderSignature  = "Fencing-Signature" // optional: proves that the token was granted
)

// maxName bounds the names on the wire; those of groups are shorter.
const maxName = 255

// MissingError: the request has no stamp at all. It is a fence.InvalidError too.
type MissingError struct{}

func (*MissingError) Error() string {
	return "fence: no stamp: the headers " + HeaderDeployment + ", " + HeaderGroup + " and " + HeaderToken + " are missing"
}

func (*MissingError) Unwrap() error {
	return &fence.InvalidError{Field: "stamp", Rule: "missing"}
}

// Parse reads a stamp from headers. values returns all values of a header. The error is a
// MissingError or a fence.InvalidError, and quotes only a short part of long values.
func Parse(values func(header string) []string) (s fence.Stamp, err error) {
	one := func(header string) (value string, there bool) {
		all := values(header)
		switch {
		case len(all) == 0:
			return "", false
		case len(all) > 1 && err == nil:
			err = &fence.InvalidError{Field: header, Value: fmt.Sprintf("%d values", len(all)), Rule: "exactly one"}
		}
		return all[0], true
	}
	deployment, a := one(HeaderDeployment)
	group, b := one(HeaderGroup)
	token, c := one(HeaderToken)
	seq, d := one(HeaderSeq)
	session, _ := one(HeaderSession)
	signature, _ := one(HeaderSignature)
	if !a && !b && !c && !d {
		return s, &MissingError{}
	}
	if err != nil {
		return s, err
	}
	if err := errors.Join(checkName(HeaderDeployment, deployment), checkName(HeaderGroup, group)); err != nil {
		return s, err
	}
	s = fence.Stamp{Deployment: deployment, Group: group, Session: session, Signature: signature}
	if s.Token, err = fence.ParseToken(token); err != nil {
		return fence.Stamp{}, err
	}
	if d && seq != "0" {
		n, err := fence.ParseToken(seq) // the same format and bounds as a token
		if err != nil {
			return fence.Stamp{}, &fence.InvalidError{Field: "seq", Value: clip(seq), Rule: "a decimal number from 0 to 2^53-1"}
		}
		s.Seq = uint64(n)
	}
	return s, s.Validate()
}

// Format is the reverse of Parse: it sets each header once, or returns why the stamp cannot
// be sent. It does not send a seq of 0, an empty session or an empty signature.
func Format(s fence.Stamp, set func(header, value string)) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if err := errors.Join(checkName(HeaderDeployment, s.Deployment), checkName(HeaderGroup, s.Group)); err != nil {
		return err
	}
	set(HeaderDeployment, s.Deployment)
	set(HeaderGroup, s.Group)
	set(HeaderToken, s.Token.String())
	if s.Seq != 0 {
		set(HeaderSeq, strconv.FormatUint(s.Seq, 10))
	}
	if s.Session != "" {
		set(HeaderSession, s.Session)
	}
	if s.Signature != "" {
		set(HeaderSignature, s.Signature)
	}
	return nil
}

// checkName accepts only names that every proxy leaves unchanged: proxies trim spaces, and
// "prod " must not become "prod".
func checkName(header, name string) error {
	if name != "" && len(name) <= maxName && !strings.ContainsFunc(name, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return nil
	}
	return &fence.InvalidError{Field: header, Value: clip(name), Rule: fmt.Sprintf("1 to %d bytes of visible ASCII", maxName)}
}

// clip shortens long header values for error messages.
func clip(s string) string {
	const most = 128
	if len(s) <= most {
		return s
	}
	return fmt.Sprintf("%s… (%d bytes)", s[:most], len(s))
}

type receivedKey struct{}

// FromContext returns the stamp that a Guard has accepted. The handler must pass it to the
// write.
func FromContext(ctx context.Context) (fence.Stamp, bool) {
	s, ok := ctx.Value(receivedKey{}).(fence.Stamp)
	return s, ok
}

// NewContext returns a context like the one that a Guard passes to a handler, for other kinds
// of servers and for tests.
func NewContext(ctx context.Context, s fence.Stamp) context.Context {
	return context.WithValue(ctx, receivedKey{}, s)
}

// Remove deletes the headers of a stamp.
func Remove(del func(header string)) {
	for _, name := range []string{HeaderToken, HeaderSeq, HeaderGroup, HeaderDeployment, HeaderSession, HeaderSignature} {
		del(name)
	}
}
