//go:build linux

package lab_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/labapi"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/reference/client"
)

// Every query of both dashboards returns values from a Prometheus that has scraped a fleet, its
// ledger and workers, and a service, across a handover.
func TestDashboards(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "fleet.json")
	f, err := lab.Start(t.Context(), lab.Config{Bin: programs(t), File: path, Event: func(s string) { t.Log(s) }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Stop() }()
	file, err := labapi.ReadFleetFile(path)
	if err != nil {
		t.Fatal(err)
	}
	service := serve(t, file.Engine.URL)
	c, err := client.New(client.Config{URLs: urls(file)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	targets := []string{file.Ledger.URL, service}
	for _, w := range file.Workers {
		targets = append(targets, w.URL)
	}
	prometheus := scrape(t, append(targets, urls(file)...))

	// The series that only a job and a handover make, after the first scrape.
	eventually(t, "every node is scraped", func() bool { return answered(t, prometheus, "count(tenure_is_leader) == 3") })
	if _, err := c.PutJob(t.Context(), api.Job{Key: "job", Schedule: "@every 1s"}); err != nil {
		t.Fatal(err)
	}
	leader, err := c.Leader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Resign(t.Context(), leader.Token); err != nil {
		t.Fatal(err)
	}
	var missing []string
	defer func() {
		for _, m := range missing {
			t.Error("no value: " + m)
		}
	}()
	eventually(t, "every query of the dashboards returns values", func() bool {
		_, _ = c.Next(t.Context(), 1)
		missing = missing[:0]
		for _, name := range []string{"election", "fencing"} {
			for title, query := range queries(t, filepath.Join("..", "deploy", "grafana", name+".json")) {
				if !answered(t, prometheus, query) {
					missing = append(missing, fmt.Sprintf("%s: %s: %s", name, title, query))
				}
			}
		}
		return len(missing) == 0
	})
}

// serve starts a service on the engine and returns its URL.
func serve(t *testing.T, engine string) string {
	t.Helper()
	dir := t.TempDir()
	top, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Build(t.Context(), top, dir+string(filepath.Separator), nil, "server/cmd/tenure"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(dir, "tenure"), "serve", "--listen=127.0.0.1:0", "--store="+strings.Replace(engine, "http://", "etcd://", 1))
	child.DieWithParent(cmd)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	ready := make(chan string, 1)
	p, err := child.Start(cmd, func() {
		lines := bufio.NewReader(out)
		line, _ := lines.ReadString('\n')
		ready <- line
		_, _ = io.Copy(io.Discard, lines)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	var said struct{ URL string }
	if err := json.Unmarshal([]byte(<-ready), &said); err != nil {
		t.Fatal(err)
	}
	return said.URL
}

// scrape starts a Prometheus that reads the targets every second, and returns its URL.
func scrape(t *testing.T, targets []string) string {
	t.Helper()
	dir := t.TempDir()
	var hosts []string
	for _, at := range targets {
		hosts = append(hosts, fmt.Sprintf("%q", strings.TrimPrefix(at, "http://")))
	}
	config := filepath.Join(dir, "prometheus.yaml")
	text := "global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: tenure\n  static_configs:\n  - targets: [" + strings.Join(hosts, ", ") + "]\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	ports, err := child.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	found := servertest.Command(t, "prometheus") // without its time limit
	cmd := exec.Command(found.Path, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+ports[0])
	cmd.Env = found.Env
	said := &child.Tail{}
	cmd.Stdout, cmd.Stderr = said, said
	child.DieWithParent(cmd)
	p, err := child.Start(cmd, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	at := "http://" + ports[0]
	eventually(t, "Prometheus is ready", func() bool {
		resp, err := http.Get(at + "/-/ready")
		if err != nil {
			return false
		}
		defer func() { _ = resp.Body.Close() }()
		return resp.StatusCode == http.StatusOK
	})
	return at
}

// queries returns the queries of a dashboard by the title of their panel, as Grafana sends them.
func queries(t *testing.T, path string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var board struct {
		Panels []struct {
			ID      int
			Title   string
			Targets []struct{ Expr, RefID string }
		}
	}
	if err := json.Unmarshal(data, &board); err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for _, p := range board.Panels {
		for _, q := range p.Targets {
			expr := strings.NewReplacer("$__rate_interval", "1m", "$group", ".*", "$resource", ".*").Replace(q.Expr)
			all[fmt.Sprintf("%d %s %s", p.ID, p.Title, q.RefID)] = expr
		}
	}
	if len(all) < len(board.Panels) || len(all) == 0 {
		t.Fatalf("%s: %d queries in %d panels", path, len(all), len(board.Panels))
	}
	return all
}

// answered reports whether a query returns a number.
func answered(t *testing.T, prometheus, query string) bool {
	t.Helper()
	resp, err := http.Get(prometheus + "/api/v1/query?query=" + url.QueryEscape(query))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var answer struct {
		Status, Error string
		Data          struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	if answer.Status != "success" {
		t.Fatalf("%s: %s", query, answer.Error)
	}
	for _, r := range answer.Data.Result {
		if r.Value[1] != "NaN" {
			return true
		}
	}
	return false
}
