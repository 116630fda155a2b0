package chaos

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// answerError is an answer that is no success.
type answerError struct {
	status int
	what   string
}

func (e *answerError) Error() string { return e.what }

// call makes one call and decodes its answer.
func (f *Fleet) call(ctx context.Context, method, to string, header http.Header, body, into any) error {
	data, err := f.raw(ctx, method, to, header, body)
	if err != nil || into == nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s %s: %w", method, to, err)
	}
	return nil
}

func (f *Fleet) raw(ctx context.Context, method, to string, header http.Header, body any) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*askTime)
	defer cancel()
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
	const most = 4 << 20
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
func (f *Fleet) read(ctx context.Context, node Leader) (reading, error) {
	data, err := f.raw(ctx, http.MethodGet, node.URL+"/metrics", nil, nil)
	if err != nil {
		return nil, err
	}
	r := reading{}
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		line := lines.Text()
		series, value, ok := cutLast(line, " ")
		if !ok || strings.HasPrefix(line, "#") || !strings.HasPrefix(line, "tenure_") {
			continue
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			r[series] = v
		}
	}
	return r, nil
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
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
