package grpcfence

import (
	"errors"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/httpfence"
)

// Domain is the domain of the ErrorInfo in a refusal.
const Domain = "tenure"

// StatusOf returns the status of a refusal, or nil for any other error.
func StatusOf(err error) *status.Status {
	if !errors.Is(err, fence.ErrRefused) && !errors.Is(err, httpfence.ErrUnavailable) {
		return nil
	}
	p := httpfence.ProblemOf(err)
	var code codes.Code
	switch p.Code {
	case httpfence.CodeStale, httpfence.CodeSlip, httpfence.CodeForeign, httpfence.CodeClone:
		code = codes.FailedPrecondition
	case httpfence.CodeMissing, httpfence.CodeInvalid:
		code = codes.InvalidArgument
	case httpfence.CodeUnavailable:
		code = codes.Unavailable
	default:
		return nil
	}
	st := status.New(code, strings.ToValidUTF8(p.Detail, "�"))
	detailed, derr := st.WithDetails(&errdetails.ErrorInfo{Reason: strings.ToUpper(p.Code), Domain: Domain, Metadata: fields(p)})
	if derr != nil {
		return st
	}
	return detailed
}

// asStatus converts refusals into their status, and returns other errors unchanged.
func asStatus(err error) error {
	if st := StatusOf(err); st != nil {
		return st.Err()
	}
	return err
}

// fields returns the fields of a problem by name.
func fields(p httpfence.Problem) map[string]string {
	all := map[string]string{
		"seq": number(p.Seq), "deployment": p.Deployment, "group": p.Group, "digest": p.Digest, "session": p.Session,
		"current_seq": number(p.CurrentSeq), "current_deployment": p.CurrentDeployment, "current_group": p.CurrentGroup, "current_digest": p.CurrentDigest, "current_session": p.CurrentSession,
		"token": number(uint64(p.Token)), "current_token": number(uint64(p.CurrentToken)),
		"field": p.Field, "value": p.Value, "rule": p.Rule,
	}
	for name, value := range all {
		if value == "" {
			delete(all, name)
			continue
		}
		// Protocol buffers allow only valid UTF-8.
		all[name] = strings.ToValidUTF8(value, "�")
	}
	return all
}

func number(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

// RefusalOf returns the refusal in a status as the error of package fence, or nil if it has
// none.
func RefusalOf(st *status.Status) error {
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == Domain {
			return problem(info).Err()
		}
	}
	return nil
}

func problem(info *errdetails.ErrorInfo) httpfence.Problem {
	m := info.GetMetadata()
	n := func(name string) uint64 {
		n, err := strconv.ParseUint(m[name], 10, 64)
		if err != nil {
			return 0
		}
		return n
	}
	return httpfence.Problem{
		Code:  strings.ToLower(info.GetReason()),
		Token: fence.Token(n("token")), Seq: n("seq"), Deployment: m["deployment"], Group: m["group"], Digest: m["digest"], Session: m["session"],
		CurrentToken: fence.Token(n("current_token")), CurrentSeq: n("current_seq"), CurrentDeployment: m["current_deployment"], CurrentGroup: m["current_group"], CurrentDigest: m["current_digest"], CurrentSession: m["current_session"],
		Field: m["field"], Value: m["value"], Rule: m["rule"],
	}
}

// refused is the error of a call: its status and the refusal.
type refused struct {
	status *status.Status
	error  // of package fence
}

func (r *refused) Unwrap() error              { return r.error }
func (r *refused) GRPCStatus() *status.Status { return r.status }

// refusal adds the refusal to the error of a call, if there is one.
func refusal(err error) error {
	st, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	if no := RefusalOf(st); no != nil {
		return &refused{status: st, error: no}
	}
	return err
}
