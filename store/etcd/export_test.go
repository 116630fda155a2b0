package etcd

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// LeaderOf finds the endpoint of etcd's own leader.
func LeaderOf(ctx context.Context, endpoints []string) (string, error) {
	for _, e := range endpoints {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{e}})
		if err != nil {
			return "", err
		}
		status, err := c.Status(ctx, e)
		_ = c.Close()
		if err == nil && status.Header.MemberId == status.Leader {
			return e, nil
		}
	}
	return "", fmt.Errorf("no leader among %v", endpoints)
}
