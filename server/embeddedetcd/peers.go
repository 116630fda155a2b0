package embeddedetcd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
)

// notReady says why the member is not ready, with the peers that are the cause.
func (e *Engine) notReady(ctx context.Context) error {
	cause := context.Cause(ctx)
	if !errors.Is(cause, ErrNotReady) {
		return fmt.Errorf("%w: %w", ErrNotReady, cause)
	}
	n := len(e.plan.members)
	if e.plan.alone() {
		return fmt.Errorf("%w: not within %v, in data directory %s", ErrNotReady, e.plan.ReadyTimeout, e.dir.path)
	}
	causes := e.unavailablePeers()
	if len(causes) == 0 {
		causes = []string{"all members answer, but may be too slow for an election timeout of " + e.plan.Election.String()}
	}
	return fmt.Errorf("%w: no quorum (%d of %d members) within %v: %s", ErrNotReady, n/2+1, n, e.plan.ReadyTimeout, strings.Join(causes, "; "))
}

// unavailablePeers asks every other member for its cluster, and returns a line for each
// that cannot be part of the quorum.
func (e *Engine) unavailablePeers() []string {
	const timeout = time.Second
	rt, err := transport.NewTransport(e.plan.PeerTLS.info(), timeout)
	if err != nil {
		return []string{err.Error()}
	}
	defer rt.CloseIdleConnections()
	client := &http.Client{Transport: rt, Timeout: timeout}

	lines := make([]string, len(e.plan.members))
	var asked sync.WaitGroup
	for i, m := range e.plan.members {
		if m.name == e.plan.Name {
			continue
		}
		asked.Go(func() {
			switch cluster, err := clusterOf(client, m); {
			case err != nil:
				lines[i] = fmt.Sprintf("%s does not answer: %v", m, err)
			case e.etcd != nil && cluster != e.etcd.Server.Cluster().ID().String():
				lines[i] = fmt.Sprintf("%s belongs to another cluster: it was started with other members or from another data directory", m)
			}
		})
	}
	asked.Wait()
	return slices.DeleteFunc(lines, func(line string) bool { return line == "" })
}

// clusterOf asks a member for the id of its cluster.
func clusterOf(client *http.Client, m member) (string, error) {
	resp, err := client.Get(m.url.JoinPath("members").String())
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) && ue.Timeout() {
			return "", fmt.Errorf("timeout after %v", client.Timeout)
		} else if errors.As(err, &ue) {
			err = ue.Err
		}
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	cluster := resp.Header.Get("X-Etcd-Cluster-ID")
	if resp.StatusCode != http.StatusOK || cluster == "" {
		return "", fmt.Errorf("it is not an etcd member (HTTP status %d)", resp.StatusCode)
	}
	return cluster, nil
}
