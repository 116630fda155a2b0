package load

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Report is the result of a run.
type Report struct {
	Rate        float64 `json:"rate"` // asked for; 0: max
	Connections int     `json:"connections"`
	N           int     `json:"n"`
	Seconds     float64 `json:"seconds"`

	Calls       int64   `json:"calls"` // answered with numbers
	CallsPerSec float64 `json:"calls_per_s"`
	IDs         int64   `json:"ids"`
	IDsPerSec   float64 `json:"ids_per_s"`

	// Unknown calls may have taken numbers. GaveUp calls found no leader and Refused calls were
	// refused: these took none.
	Unknown int64 `json:"unknown"`
	GaveUp  int64 `json:"gave_up"`
	Refused int64 `json:"refused"`
	// Again counts tries that had no effect and were repeated.
	Again int64 `json:"again"`
	// Late calls were sent more than 1 ms after they were due. Their latency includes that.
	Late int64 `json:"late"`
	// Disordered answers had a number or a token that is not above the one before on the same
	// connection, which violates G6.
	Disordered    int64  `json:"disordered"`
	Dials         int64  `json:"dials"`
	LeaderChanges int64  `json:"leader_changes"`
	Leader        string `json:"leader"`
	Token         uint64 `json:"token"`
	// FirstTrouble is the first problem, for people.
	FirstTrouble string `json:"first_trouble,omitempty"`

	// Latencies are those of the answered calls.
	MeanUS    float64    `json:"mean_us"`
	Latencies []Quantile `json:"latencies"`
}

// Quantile is the longest latency of the fastest Percent of the calls.
type Quantile struct {
	Percent float64 `json:"percent"`
	US      int64   `json:"us"`
}

// At is the latency at a percentage that Latencies has, 0 otherwise.
func (r Report) At(percent float64) time.Duration {
	for _, q := range r.Latencies {
		if q.Percent == percent {
			return time.Duration(q.US) * time.Microsecond
		}
	}
	return 0
}

// Errors is the number of calls without an answer.
func (r Report) Errors() int64 { return r.Unknown + r.GaveUp + r.Refused }

func (m *meter) report(cfg Config, took time.Duration, r *route) Report {
	m.collect()
	m.mu.Lock()
	defer m.mu.Unlock()
	out := Report{
		Rate: cfg.Rate, Connections: cfg.Connections, N: cfg.N, Seconds: took.Seconds(),
		Calls: m.total.TotalCount(), IDs: m.ids,
		Unknown: m.unknown.Load(), GaveUp: m.gaveUp.Load(), Refused: m.refused.Load(),
		Again: m.again.Load(), Late: m.late.Load(), Disordered: m.disordered.Load(), Dials: m.dials.Load(),
		Token: m.token.Load(), FirstTrouble: m.first, MeanUS: m.total.Mean(),
	}
	out.Leader, out.LeaderChanges = r.leader()
	if s := took.Seconds(); s > 0 {
		out.CallsPerSec, out.IDsPerSec = float64(out.Calls)/s, float64(out.IDs)/s
	}
	for _, p := range []float64{50, 75, 90, 95, 99, 99.9, 99.99, 100} {
		out.Latencies = append(out.Latencies, Quantile{p, m.total.ValueAtQuantile(p)})
	}
	return out
}

// Print writes the report for people.
func (r Report) Print(w io.Writer) error {
	asked := "as fast as answered"
	if r.Rate > 0 {
		asked = fmt.Sprintf("at %g/s, latency from when a call was due", r.Rate)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `%d connections, %d a call, %s, %.1f s
calls     %12d  %12.0f/s
ids       %12d  %12.0f/s
unknown   %12d
gave up   %12d
refused   %12d
again     %12d
late      %12d
leader changes %7d
disordered %11d
`, r.Connections, r.N, asked, r.Seconds, r.Calls, r.CallsPerSec, r.IDs, r.IDsPerSec, r.Unknown, r.GaveUp, r.Refused, r.Again, r.Late, r.LeaderChanges, r.Disordered)
	if r.FirstTrouble != "" {
		fmt.Fprintf(&b, "first trouble: %s\n", r.FirstTrouble)
	}
	fmt.Fprintf(&b, "latency   %12s\n", "ms")
	for _, q := range r.Latencies {
		fmt.Fprintf(&b, "  p%-7g %12.3f\n", q.Percent, float64(q.US)/1000)
	}
	fmt.Fprintf(&b, "  mean     %11.3f\n", r.MeanUS/1000)
	_, err := io.WriteString(w, b.String())
	return err
}
