package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// answerError is an answer that is no success.
type answerError struct {
	status int
	what   string
}

func (e *answerError) Error() string { return e.what }

// call makes one call that answers soon.
func (f *Fleet) call(ctx context.Context, method, to string, header http.Header, body, into any) error {
	return f.Call(ctx, 2*askTime, method, to, header, body, into)
}

// Call calls a program of the fleet over HTTP within a time limit and decodes its answer.
// A *string takes the answer as it is.
func (f *Fleet) Call(ctx context.Context, within time.Duration, method, to string, header http.Header, body, into any) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	data, err := f.raw(ctx, method, to, header, body)
	if text, ok := into.(*string); ok && err == nil {
		*text = string(data)
		return nil
	}
	if err != nil || into == nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s %s: %w", method, to, err)
	}
	return nil
}

func (f *Fleet) raw(ctx context.Context, method, to string, header http.Header, body any) ([]byte, error) {
	var in io.Reader = http.NoBody
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		in = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, to, in)
	if err != nil {
		return nil, err
	}
	for k, v := range header {
		req.Header[k] = v
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := f.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	const most = 8 << 20
	data, err := io.ReadAll(io.LimitReader(resp.Body, most))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		const few = 300
		return nil, &answerError{resp.StatusCode, fmt.Sprintf("%s %s: %s: %.*s", method, to, resp.Status, few, bytes.TrimSpace(data))}
	}
	return data, nil
}

// reading is a node's metrics at one moment: series as they are written, to values.
type reading map[string]float64

// read asks a node for its metrics.
func (f *Fleet) read(ctx context.Context, node Target) (reading, error) {
	var text string
	if err := f.call(ctx, http.MethodGet, node.URL+"/metrics", nil, nil, &text); err != nil {
		return nil, err
	}
	r := reading{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || !strings.HasPrefix(line, "tenure_") {
			continue
		}
		if v, err := strconv.ParseFloat(line[i+1:], 64); err == nil {
			r[line[:i]] = v
		}
	}
	return r, nil
}

// grown is by how much the series of a name have grown since another reading, by the
// value of a label.
func (r reading) grown(since reading, name, label string) map[string]float64 {
	out := map[string]float64{}
	for series, v := range r {
		labels, ok := strings.CutPrefix(series, name+"{")
		if !ok {
			continue
		}
		_, rest, ok := strings.Cut(labels, label+`="`)
		if !ok {
			continue
		}
		word, _, _ := strings.Cut(rest, `"`)
		if d := v - since[series]; d > 0 {
			out[word] += d
		}
	}
	return out
}
