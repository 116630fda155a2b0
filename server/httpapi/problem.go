package httpapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"strconv"
	"time"
)

// ContentTypeProblem is the media type of an error (RFC 9457).
const ContentTypeProblem = "application/problem+json"

// Problem is an error and the answer to a request that failed. Code is for programs, Detail
// for people.
type Problem struct {
	Status    int
	Detail    string
	Code      string
	Retryable bool
	// RetryAfter is rounded up to seconds; zero sends none.
	RetryAfter time.Duration
	// More are further members of the object, such as leader_node_id.
	More map[string]any
}

// Refuse returns a Problem. Detail is fmt.Sprintf of format and args.
func Refuse(status int, code, format string, args ...any) *Problem {
	return &Problem{Status: status, Code: code, Detail: fmt.Sprintf(format, args...)}
}

// Retry marks the problem as one that the same request may not meet after some time.
func (p *Problem) Retry(after time.Duration) *Problem {
	p.Retryable, p.RetryAfter = true, after
	return p
}

// With adds members to the problem.
func (p *Problem) With(more map[string]any) *Problem {
	p.More = more
	return p
}

// packageName is what Go errors begin with.
var packageName = regexp.MustCompile(`(?m)^(json|fence|lease|tenure): `)

// Plain returns the text of an error without package names: callers over HTTP do not know them.
func Plain(err error) string { return packageName.ReplaceAllString(err.Error(), "") }

func (p *Problem) Error() string {
	if p.Detail == "" {
		return fmt.Sprintf("%d %s", p.Status, http.StatusText(p.Status))
	}
	return p.Detail
}

// MarshalJSON writes one flat object; a member of More does not replace ours.
func (p *Problem) MarshalJSON() ([]byte, error) {
	all := make(map[string]any, len(p.More)+6)
	maps.Copy(all, p.More)
	all["type"], all["title"], all["status"], all["code"], all["retryable"] = "about:blank", http.StatusText(p.Status), p.Status, p.Code, p.Retryable
	if p.Detail != "" {
		all["detail"] = p.Detail
	}
	return json.Marshal(all)
}

// WriteProblem answers with p.
func WriteProblem(w http.ResponseWriter, p *Problem) {
	body, err := json.Marshal(p)
	if err != nil {
		http.Error(w, p.Error(), p.Status)
		return
	}
	h := w.Header()
	h.Set("Content-Type", ContentTypeProblem)
	h.Set("Cache-Control", "no-store")
	if p.RetryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64((p.RetryAfter+time.Second-1)/time.Second), 10))
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n'))
}

// WriteJSON answers with v.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	body, err := EncodeJSON(v)
	if err != nil {
		WriteProblem(w, Refuse(http.StatusInternalServerError, "internal", "encoding the answer as JSON failed"))
		return
	}
	WriteBody(w, status, body)
}

// EncodeJSON returns v as the body that WriteJSON sends.
func EncodeJSON(v any) ([]byte, error) {
	body, err := json.Marshal(v)
	return append(body, '\n'), err
}

// WriteBody answers with what EncodeJSON returned.
func WriteBody(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// Recorder notes the status of an answer.
type Recorder struct {
	http.ResponseWriter
	Status int
}

// WriteHeader implements http.ResponseWriter.
func (r *Recorder) WriteHeader(status int) {
	r.Status = status
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap is for http.ResponseController.
func (r *Recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
