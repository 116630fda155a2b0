// Package grpcfence carries stamps over gRPC: client interceptors add them to calls, server
// interceptors read and refuse them.
//
// # Limitations
//
// An interceptor alone is not a sink. Between its check and the handler's write the server
// may be paused for as long as it takes to elect another leader. This is wrong:
//
//	func (s *server) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutReply, error) {
//		os.WriteFile("report", r.Data, 0o644) // no stamp: nothing is fenced
//
// This is right, because the directory compares the stamp and writes in one step:
//
//	func (s *server) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutReply, error) {
//		stamp, _ := grpcfence.FromContext(ctx)
//		if err := s.dir.WriteFile(ctx, stamp, "report", r.Data, 0o644); err != nil {
//			return nil, err // a refusal becomes its status
//		}
//
// A caller that sends a higher token is believed, unless [Guard] has a Verifier. A stream has
// one stamp, read when it begins; it may outlive its leader's term, so the sink must check
// each of its writes. A lost answer says nothing about the write.
//
// # Wire format
//
// A stamp is the metadata fencing-deployment, fencing-group, fencing-token, optionally
// fencing-session, and fencing-seq if it is not 0: the headers of package httpfence, with the
// same bounds. A refusal is a status with an ErrorInfo of the domain "tenure". Its reason says
// which refusal, its metadata has both tokens (token, current_token):
//
//	FailedPrecondition  STALE: a newer leader has been here: stop
//	FailedPrecondition  SLIP, FOREIGN, CLONE: a mistake; an operator must look
//	InvalidArgument     MISSING, INVALID: no stamp, or an invalid one
//	Unavailable         UNAVAILABLE: the mark could not be read; try again
//
// The client interceptors convert it back: the error of a call is both the status and, by
// errors.As, the error of package fence.
package grpcfence
