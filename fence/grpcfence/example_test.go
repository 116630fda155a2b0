package grpcfence_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/filefence"
	"github.com/tenurehq/tenure/fence/grpcfence"
)

// reports stands for your service: it writes a file for each call.
type reports struct {
	grpc_health_v1.UnimplementedHealthServer
	dir *filefence.Dir
}

// Check passes the stamp to the sink that makes the write.
func (s *reports) Check(ctx context.Context, _ *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	stamp, _ := grpcfence.FromContext(ctx)
	if err := s.dir.WriteFile(ctx, stamp, "today.csv", []byte("report"), 0o644); err != nil {
		return nil, err
	}
	return &grpc_health_v1.HealthCheckResponse{}, nil
}

// The sink refuses a leader after a newer one has written, however late its call arrives.
func Example() {
	path, _ := os.MkdirTemp("", "reports-")
	defer func() { _ = os.RemoveAll(path) }()
	dir, err := filefence.Open(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = dir.Close() }()
	listener, _ := net.Listen("tcp", "127.0.0.1:0")

	guard := grpcfence.Guard{}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(guard.Unary))
	grpc_health_v1.RegisterHealthServer(server, &reports{dir: dir})
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()

	conn, _ := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(grpcfence.Client{}.Unary))
	defer func() { _ = conn.Close() }()
	for _, token := range []fence.Token{41, 42, 41} {
		stamp := fence.Stamp{Deployment: "prod", Group: "reports", Token: token}
		ctx := grpcfence.WithStamp(context.Background(), stamp) // or WithTerm
		_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		fmt.Println("token", token, status.Code(err), errors.Is(err, fence.ErrRefused))
	}
	// Output:
	// token 41 OK false
	// token 42 OK false
	// token 41 FailedPrecondition true
}
