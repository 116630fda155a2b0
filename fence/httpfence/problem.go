package httpfence

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"

	"github.com/tenurehq/tenure/fence"
)

// ErrUnavailable: the guard could not find out whether the stamp is stale. Nothing was
// written; try again. It is not a refusal.
var ErrUnavailable = errors.New("httpfence: the mark could not be read")

// ContentType is the content type of a Problem.
const ContentType = "application/problem+json"

// The codes of problems, for programs.
const (
	CodeStale       = "stale"       // 412
	CodeSlip        = "slip"        // 409
	CodeForeign     = "foreign"     // 409
	CodeClone       = "clone"       // 409
	CodeMissing     = "missing"     // 428
	CodeInvalid     = "invalid"     // 400
	CodeUnavailable = "unavailable" // 503
	CodeInternal    = "internal"    // 500
)

// Problem is the body of a refusal (RFC 9457). Token and the fields beside it are those of
// the stamp; fields that begin with current are those of the sink's mark.
type Problem struct {
	Type      string `json:"type"`
	Title     string `json:"title"`
	Status    int    `json:"status"`
	Detail    string `json:"detail"`
	Code      string `json:"code"`
	Retryable bool   `json:"retryable"`

	Token      fence.Token `json:"token,omitempty"`
	Seq        uint64      `json:"seq,omitempty"`
	Deployment string      `json:"deployment,omitempty"`
	Group      string      `json:"group,omitempty"`
	Digest     string      `json:"digest,omitempty"` // clone only
	Session    string      `json:"session,omitempty"`

	CurrentToken      fence.Token `json:"current_token,omitempty"`
	CurrentSeq        uint64      `json:"current_seq,omitempty"`
	CurrentDeployment string      `json:"current_deployment,omitempty"`
	CurrentGroup      string      `json:"current_group,omitempty"`
	CurrentDigest     string      `json:"current_digest,omitempty"` // clone only
	CurrentSession    string      `json:"current_session,omitempty"`

	Field string `json:"field,omitempty"` // invalid only
	Value string `json:"value,omitempty"` // invalid only
	Rule  string `json:"rule,omitempty"`  // invalid only
}

// kind has the fixed properties of a code.
type kind struct {
	status int
	title  string
}

var kinds = map[string]kind{
	CodeStale:       {http.StatusPreconditionFailed, "A newer leader was here"},
	CodeSlip:        {http.StatusConflict, "The token is implausibly high"},
	CodeForeign:     {http.StatusConflict, "The sink belongs to another deployment or group"},
	CodeClone:       {http.StatusConflict, "Another process has the same token"},
	CodeMissing:     {http.StatusPreconditionRequired, "The request has no stamp"},
	CodeInvalid:     {http.StatusBadRequest, "The stamp is invalid"},
	CodeUnavailable: {http.StatusServiceUnavailable, "The mark could not be read"},
	CodeInternal:    {http.StatusInternalServerError, "The write failed"},
}

// ProblemOf describes an error of a sink. An error that is not a refusal is described without
// its text, which is for the server's log only; to the client its outcome is unknown.
func ProblemOf(err error) Problem {
	p := Problem{Code: CodeInternal, Detail: "whether the write was made is unknown"}
	var (
		stale   *fence.StaleError
		slip    *fence.SlipError
		foreign *fence.ForeignError
		clone   *fence.CloneError
		missing *MissingError
		invalid *fence.InvalidError
	)
	switch {
	case errors.Is(err, ErrUnavailable): // whatever the reason
		p = Problem{Code: CodeUnavailable, Detail: "nothing was written; try again", Retryable: true}
	case errors.As(err, &stale):
		p = compared(CodeStale, stale, stale.Stamp, stale.Mark)
	case errors.As(err, &slip):
		p = compared(CodeSlip, slip, slip.Stamp, slip.Mark)
	case errors.As(err, &foreign):
		p = compared(CodeForeign, foreign, foreign.Stamp, foreign.Mark)
	case errors.As(err, &clone):
		p = compared(CodeClone, clone, clone.Stamp, clone.Mark)
		p.Digest, p.CurrentDigest = clip(clone.Digest), clip(clone.Mark.Digest)
	case errors.As(err, &missing):
		p = Problem{Code: CodeMissing, Detail: missing.Error()}
	case errors.As(err, &invalid):
		p = Problem{Code: CodeInvalid, Detail: invalid.Error(), Field: invalid.Field, Value: invalid.Value, Rule: invalid.Rule}
	}
	k := kinds[p.Code]
	p.Status, p.Title = k.status, k.title
	p.Type = "https://github.com/tenurehq/tenure/blob/main/docs/fencing.md#" + p.Code
	return p
}

func compared(code string, err error, s fence.Stamp, m fence.Mark) Problem {
	return Problem{
		Code: code, Detail: err.Error(),
		Token: s.Token, Seq: s.Seq, Deployment: s.Deployment, Group: s.Group, Session: s.Session,
		CurrentToken: m.Token, CurrentSeq: m.Seq, CurrentDeployment: m.Deployment, CurrentGroup: m.Group, CurrentSession: m.Session,
	}
}

// Err returns the refusal that the problem describes, or nil if it is not a refusal.
func (p Problem) Err() error {
	s := fence.Stamp{Deployment: p.Deployment, Group: p.Group, Token: p.Token, Seq: p.Seq, Session: p.Session}
	m := fence.Mark{Deployment: p.CurrentDeployment, Group: p.CurrentGroup, Token: p.CurrentToken, Seq: p.CurrentSeq, Digest: p.CurrentDigest, Session: p.CurrentSession}
	switch p.Code {
	case CodeStale:
		return &fence.StaleError{Stamp: s, Mark: m}
	case CodeSlip:
		return &fence.SlipError{Stamp: s, Mark: m}
	case CodeForeign:
		return &fence.ForeignError{Stamp: s, Mark: m}
	case CodeClone:
		return &fence.CloneError{Stamp: s, Digest: p.Digest, Mark: m}
	case CodeMissing:
		return &MissingError{}
	case CodeInvalid:
		return &fence.InvalidError{Field: p.Field, Value: p.Value, Rule: p.Rule}
	}
	return nil
}

// WriteError answers with the problem of an error: a refusal of any sink, or 500 for any
// other error.
func WriteError(w http.ResponseWriter, err error) {
	ProblemOf(err).Write(w)
}

// Write answers with the problem.
func (p Problem) Write(w http.ResponseWriter) {
	body, err := json.Marshal(p)
	if err != nil {
		http.Error(w, p.Detail, p.Status)
		return
	}
	h := w.Header()
	h.Set("Content-Type", ContentType)
	h.Set("Cache-Control", "no-store")
	if p.Status == http.StatusServiceUnavailable {
		h.Set("Retry-After", "1")
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n'))
}

// maxProblem bounds how much of a problem response is read.
const maxProblem = 64 << 10

// Refusal returns the refusal in a response as the error of package fence, or nil if it has
// none. The body can still be read from its beginning.
func Refusal(r *http.Response) error {
	if r.StatusCode < http.StatusBadRequest || r.Body == nil {
		return nil
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != ContentType {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(r.Body, maxProblem))
	r.Body = &again{Reader: io.MultiReader(bytes.NewReader(text), r.Body), Closer: r.Body}
	if err != nil {
		return nil
	}
	var p Problem
	// A problem of another program may have one of our codes by chance, but not with our status.
	if json.Unmarshal(text, &p) != nil || p.Status != r.StatusCode || kinds[p.Code].status != p.Status {
		return nil
	}
	return p.Err()
}

// again is a body whose beginning is read twice.
type again struct {
	io.Reader
	io.Closer
}
