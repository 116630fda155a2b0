package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// AnswerError is an answer with a status that is not 2xx.
type AnswerError struct {
	Status int
	what   string
}

func (e *AnswerError) Error() string { return e.what }

// Call calls a program of the fleet over HTTP within a time limit and decodes its answer.
// A *string takes the answer as it is.
func (f *Fleet) Call(ctx context.Context, within time.Duration, method, to string, header http.Header, body, into any) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var in io.Reader = http.NoBody
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		in = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, to, in)
	if err != nil {
		return err
	}
	maps.Copy(req.Header, header)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := f.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	const most = 8 << 20
	data, err := io.ReadAll(io.LimitReader(resp.Body, most))
	switch text, raw := into.(*string); {
	case err != nil:
		return err
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return &AnswerError{resp.StatusCode, fmt.Sprintf("%s %s: %s: %.300s", method, to, resp.Status, bytes.TrimSpace(data))}
	case raw:
		*text = string(data)
	case into != nil:
		if err := json.Unmarshal(data, into); err != nil {
			return fmt.Errorf("%s %s: %w", method, to, err)
		}
	}
	return nil
}

// Metrics are the metrics of a node: series as they are written, to values.
type Metrics map[string]float64

// Metrics asks a node for its metrics.
func (f *Fleet) Metrics(ctx context.Context, node Target) (Metrics, error) {
	var text string
	if err := f.Call(ctx, CallTime, http.MethodGet, node.URL+"/metrics", nil, nil, &text); err != nil {
		return nil, err
	}
	m := Metrics{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || !strings.HasPrefix(line, "tenure_") {
			continue
		}
		if v, err := strconv.ParseFloat(line[i+1:], 64); err == nil {
			m[line[:i]] = v
		}
	}
	return m, nil
}

// Grown says by how much the series of a name have grown since before, by the value of a
// label, such as: keep-alives failed: 3 (timeout 3). Some values of the label are left out.
// Empty: they have not grown.
func (m Metrics) Grown(before Metrics, name, label, what string, except ...string) string {
	by := map[string]float64{}
	var sum float64
	for series, v := range m {
		labels, ok := strings.CutPrefix(series, name+"{")
		_, rest, has := strings.Cut(labels, label+`="`)
		value, _, _ := strings.Cut(rest, `"`)
		if d := v - before[series]; ok && has && d > 0 && !slices.Contains(except, value) {
			by[value] += d
			sum += d
		}
	}
	if sum == 0 {
		return ""
	}
	var parts []string
	for _, value := range slices.Sorted(maps.Keys(by)) {
		parts = append(parts, fmt.Sprintf("%s %.0f", value, by[value]))
	}
	return fmt.Sprintf("%s: %.0f (%s)", what, sum, strings.Join(parts, ", "))
}

// RefusedWords begin the answer of Refused.
const RefusedWords = "writes refused"

// Refused says how many writes the fence has refused since before.
func (m Metrics) Refused(before Metrics) string {
	return m.Grown(before, "tenure_fence_rejected_total", "reason", RefusedWords)
}
