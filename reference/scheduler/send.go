package scheduler

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/tenurehq/tenure/fence/httpfence"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/httpclient"
)

// answer is how a request to a worker ended. An error is bad (the orders are invalid), or
// definite (nothing was done; busy: there is no room), or the orders may have been accepted.
type answer struct {
	err      error
	bad      bool
	definite bool
	busy     bool
	took     time.Duration
}

// send sends orders to a worker.
func (d *dispatcher) send(ctx context.Context, worker string, body api.Orders) answer {
	began := d.cfg.Clock.Now()
	data, err := json.Marshal(body)
	if err != nil {
		return answer{err: err, bad: true}
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.WorkerTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, worker+"/v1/orders", bytes.NewReader(data))
	if err == nil {
		err = httpfence.Format(d.stamp, req.Header.Set)
	}
	if err != nil {
		return answer{err: err, definite: true}
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := d.client.Do(req)
	if err != nil {
		return answer{err: err, definite: httpclient.NotSent(err)}
	}
	defer func() { _ = resp.Body.Close() }()
	a := d.judge(resp)
	const most = 1 << 20
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, most)) // so that the connection is kept
	a.took = d.cfg.Clock.Now().Sub(began)
	return a
}

func (d *dispatcher) judge(resp *http.Response) answer {
	switch {
	case resp.StatusCode == http.StatusOK:
		return answer{}
	case httpfence.Refusal(resp) != nil:
		return answer{err: httpfence.Refusal(resp), definite: true}
	}
	err := fmt.Errorf("it answered %s", resp.Status)
	switch resp.StatusCode {
	case http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge:
		return answer{err: err, bad: true}
	case http.StatusTooManyRequests:
		return answer{err: err, definite: true, busy: true}
	case http.StatusServiceUnavailable, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusBadRequest:
		return answer{err: err, definite: true}
	}
	return answer{err: err}
}
