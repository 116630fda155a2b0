package load

import (
	"fmt"
	"io"
	"time"
)

// Report is what became of a run.
type Report struct {
	Rate        float64 `json:"rate"` // asked for; 0: max
	Connections int     `json:"connections"`
	N           int     `json:"n"`
	Seconds     float64 `json:"seconds"`

	Calls       int64   `json:"calls"` // answered with numbers
	CallsPerSec float64 `json:"calls_per_s"`
	IDs         int64   `json:"ids"`
	IDsPerSec   float64 `json:"ids_per_s"`

	// Unknown calls may have taken numbers, or not. GaveUp found no leader, Refused got
	// a definite no: these took none.
	Unknown int64 `json:"unknown"`
	GaveUp  int64 `json:"gave_up"`
	Refused int64 `json:"refused"`
	// Again counts tries that were repeated, nothing having been done.
	Again int64 `json:"again"`
	// Late calls were sent more than 1 ms after they were due. Their latency includes it.
	Late int64 `json:"late"`
	// Disordered answers had a number or a token that is not above the one before on the
	// same connection: a broken promise.
	Disordered    int64  `json:"disordered"`
	Dials         int64  `json:"dials"`
	LeaderChanges int64  `json:"leader_changes"`
	Leader        string `json:"leader"`
	Token         uint64 `json:"token"`
	// FirstTrouble is the first refusal, for people.
	FirstTrouble string `json:"first_trouble,omitempty"`

	// Latencies are those of the calls that were answered; what is unknown or gave up
	// has none, and is counted above.
	MeanUS    float64    `json:"mean_us"`
	Latencies []Quantile `json:"latencies"`
}

// Quantile is how long the fastest Percent of the calls took at most.
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

// Errors are the calls that got no numbers.
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
	_, err := fmt.Fprintf(w, `%d connections, %d a call, %s, %.1f s
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
	if err != nil {
		return err
	}
	if r.FirstTrouble != "" {
		if _, err := fmt.Fprintf(w, "first trouble: %s\n", r.FirstTrouble); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintf(w, "latency   %12s\n", "ms"); err != nil {
		return err
	}
	for _, q := range r.Latencies {
		if _, err := fmt.Fprintf(w, "  p%-7g %12.3f\n", q.Percent, float64(q.US)/1000); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(w, "  mean     %11.3f\n", r.MeanUS/1000)
	return err
}
