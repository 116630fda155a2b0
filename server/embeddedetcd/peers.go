package embeddedetcd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
)

// late says why the member is not ready, naming the peers that are to blame.
func (e *Engine) late(ctx context.Context) error {
	cause := context.Cause(ctx)
	if !errors.Is(cause, ErrNotReady) {
		return fmt.Errorf("%w: %w", ErrNotReady, cause)
	}
	n := len(e.plan.members)
	if e.plan.alone() {
		return fmt.Errorf("%w: not within %v, in data directory %s", ErrNotReady, e.plan.ReadyTimeout, e.dir.path)
	}
	text := fmt.Sprintf("no quorum (%d of %d members) within %v", n/2+1, n, e.plan.ReadyTimeout)
	if silent := e.silentPeers(); len(silent) > 0 {
		text += ": " + strings.Join(silent, "; ")
	} else {
		text += ", though all members answer: they may be too slow for an election timeout of " + e.plan.Election.String()
	}
	return fmt.Errorf("%w: %s", ErrNotReady, text)
}

// silentPeers asks every other member who it is, and returns a line for each that
// cannot be part of a quorum.
func (e *Engine) silentPeers() []string {
	const patience = time.Second
	rt, err := transport.NewTransport(e.plan.PeerTLS.info(), patience)
	if err != nil {
		return []string{err.Error()}
	}
	defer rt.CloseIdleConnections()
	client := &http.Client{Transport: rt, Timeout: patience}

	lines := make([]string, len(e.plan.members))
	var asked sync.WaitGroup
	for i, m := range e.plan.members {
		if m.name == e.plan.Name {
			continue
		}
		asked.Go(func() {
			switch cluster, err := e.ask(client, m); {
			case err != nil:
				lines[i] = fmt.Sprintf("%s does not answer: %v", m, err)
			case e.etcd != nil && cluster != e.etcd.Server.Cluster().ID().String():
				lines[i] = fmt.Sprintf("%s belongs to another cluster: it was started with other members, or from another data directory", m)
			}
		})
	}
	asked.Wait()
	var silent []string
	for _, line := range lines {
		if line != "" {
			silent = append(silent, line)
		}
	}
	return silent
}

func (e *Engine) ask(client *http.Client, m member) (cluster string, err error) {
	resp, err := client.Get(m.url.JoinPath("members").String())
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) && ue.Timeout() {
			return "", fmt.Errorf("silent for %v", client.Timeout)
		} else if errors.As(err, &ue) {
			err = ue.Err
		}
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	cluster = resp.Header.Get("X-Etcd-Cluster-ID")
	if resp.StatusCode != http.StatusOK || cluster == "" {
		return "", fmt.Errorf("it is no etcd member (HTTP status %d)", resp.StatusCode)
	}
	return cluster, nil
}
