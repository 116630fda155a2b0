// Package grpcfence carries stamps over gRPC: client interceptors that stamp calls,
// and server interceptors that read and refuse them.
//
// An interceptor alone is not a sink. Between its check and the handler's write the
// server may be paused for as long as it takes to elect another leader. This is
// wrong:
//
//	func (s *server) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutReply, error) {
//		os.WriteFile("report", r.Data, 0o644) // no stamp: nothing is fenced
//
// and this is right, because the directory compares the stamp with its mark and
// writes in one step:
//
//	func (s *server) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutReply, error) {
//		stamp, _ := grpcfence.FromContext(ctx)
//		if err := s.dir.WriteFile(ctx, stamp, "report", r.Data, 0o644); err != nil {
//			return nil, err // a refusal becomes its status by itself
//		}
//
// Nor is anybody kept out who sends a higher token, unless [Guard] has a Verifier
// that knows better. A stream has one stamp, read when it begins: it may outlive
// its leader's term by hours, and each of its writes is the sink's to refuse. An
// answer that was lost says nothing about the write.
//
// On the wire a stamp is the metadata fencing-deployment, fencing-group,
// fencing-token and, where it is not 0, fencing-seq: the headers of package
// httpfence, with the same bounds. A refusal is a status with an ErrorInfo of the
// domain "tenure", whose reason says which and whose metadata names both tokens
// (token, current_token):
//
//	FailedPrecondition  STALE: a newer leader was here: stop
//	FailedPrecondition  SLIP, FOREIGN, CLONE: no leader's doing; somebody must look
//	InvalidArgument     MISSING, INVALID: no stamp, or none that is one
//	Unavailable         UNAVAILABLE: the mark could not be read; try again
//
// The client interceptors turn it back: the error of a call is both the status and
// the error of package fence, by errors.As.
package grpcfence
