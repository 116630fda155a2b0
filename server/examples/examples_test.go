// Package examples runs what the documentation shows, against a real engine and a real
// database. Only the tests are Go; the programs are in folders of their own and in
// examples/jobs.
package examples

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tenurehq/tenure/fence/pgxfence"
	"github.com/tenurehq/tenure/internal/child"
	"github.com/tenurehq/tenure/internal/enginetest"
	"github.com/tenurehq/tenure/internal/servertest"
)

// patience is long, for a busy machine.
const patience = 90 * time.Second

// bench has an engine, a database with the fence, and the programs.
type bench struct {
	*testing.T
	bin   string
	jobs  string
	store string
	url   string // of the database
	db    *pgx.Conn
	env   []string
}

func newBench(t *testing.T) *bench {
	b := &bench{T: t, bin: t.TempDir()}
	build := exec.Command("go", "build", "-buildvcs=false", "-o", b.bin+"/", "../cmd/tenure", "./reconcile")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var err error
	if b.jobs, err = filepath.Abs("../../examples/jobs"); err != nil {
		t.Fatal(err)
	}
	urls := enginetest.Cluster(t, 1).Endpoints()
	b.store = "etcd://" + strings.TrimPrefix(urls[0], "http://")
	server := servertest.Postgres(t)
	psql := servertest.Command(t, "psql") // migrate.sh and invoices.py call it
	path := filepath.Dir(psql.Path) + string(filepath.ListSeparator) + os.Getenv("PATH")
	b.env = slices.Concat(psql.Env, []string{"PATH=" + path, "DATABASE_URL=" + server.URL(), "TENURE_STORE=" + b.store})
	b.url = server.URL()
	if b.db, err = pgx.Connect(t.Context(), b.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.db.Close(context.Background()) })
	if err := pgxfence.Migrate(t.Context(), b.db); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) sql(statement string) {
	b.Helper()
	if _, err := b.db.Exec(b.Context(), statement); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) number(query string) (n int) {
	b.Helper()
	if err := b.db.QueryRow(b.Context(), query).Scan(&n); err != nil {
		b.Fatal(err)
	}
	return n
}

// job is a run of tenure exec, and its output.
type job struct {
	*child.Process
	out child.Tail
}

func (b *bench) exec(node string, env []string, args ...string) *job {
	b.Helper()
	j := &job{}
	cmd := exec.Command(filepath.Join(b.bin, "tenure"), append([]string{"exec", "--id=" + node, "--ttl=3s"}, args...)...)
	cmd.Env = append(append([]string{}, b.env...), env...)
	cmd.Stdout, cmd.Stderr = &j.out, &j.out
	child.DieWithParent(cmd)
	var err error
	if j.Process, err = child.Start(cmd, nil); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		j.Kill()
		if b.Failed() {
			b.Logf("%s: %s", node, j.out.String())
		}
	})
	return j
}

// ends waits for the end of a job and compares its exit code.
func (b *bench) ends(j *job, code int) {
	b.Helper()
	select {
	case <-j.Exited:
	case <-time.After(patience):
		b.Fatalf("it runs still: %s", j.out.String())
	}
	got := 0
	var failed *exec.ExitError
	if err := j.Err; errors.As(err, &failed) {
		got = failed.ExitCode()
	} else if err != nil {
		b.Fatal(err)
	}
	if got != code {
		b.Fatalf("exit code %d, want %d: %s", got, code, j.out.String())
	}
}

func (b *bench) until(what string, seen func() bool) {
	b.Helper()
	for end := time.Now().Add(patience); !seen(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatal("not seen: " + what)
		}
	}
}

// examples/jobs and reconcile do what their comments say.
func TestJobs(t *testing.T) {
	b := newBench(t)
	b.sql(`CREATE TABLE account (name text PRIMARY KEY, owed_cents bigint NOT NULL);
		INSERT INTO account SELECT 'account-' || n, 100 * n FROM generate_series(1, 300) n`)
	for name, test := range map[string]func(*bench){"cleanup": cleanup, "migrate": migrate, "reconcile": reconcile, "invoices": invoices, "client": client} {
		t.Run(name, func(t *testing.T) {
			own := *b
			own.T = t
			test(&own)
		})
	}
}

// The cron job runs on one machine. The others, in the same second or later, do not run it.
// The next run has another key.
func cleanup(b *bench) {
	dir := b.TempDir()
	run := func(node, key string) *job {
		return b.exec(node, nil, "--ttl=30s", "--once="+key, "cleanup", "--", filepath.Join(b.jobs, "cleanup.sh"), dir)
	}
	for _, key := range []string{"cleanup-2026-11-16-0300", "cleanup-2026-11-16-0305"} {
		for i := range 3 {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i, ".tmp")), nil, 0o644); err != nil {
				b.Fatal(err)
			}
		}
		all := []*job{run("a", key), run("b", key)}
		for _, j := range all {
			b.ends(j, 0)
		}
		late := run("c", key)
		b.ends(late, 0)
		ran := 0
		for _, j := range append(all, late) {
			ran += strings.Count(j.out.String(), "removed 3 files")
		}
		if ran != 1 {
			b.Errorf("%s ran %d times", key, ran)
		}
	}
}

func (b *bench) leads(group string) string {
	cmd := exec.Command(filepath.Join(b.bin, "tenure"), "leader", group, "-o", "name")
	cmd.Env = b.env
	out, err := cmd.Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}

// If the machine of a migration is killed in the middle of a step, another takes over: every
// step is made once, and a third machine finds it done and does nothing.
func migrate(b *bench) {
	run := func(node string, env ...string) *job {
		return b.exec(node, env, "--once=2026-11-emails", "--once-for=0s", "migrate", "--", filepath.Join(b.jobs, "migrate.sh"))
	}
	first := run("a", "MIGRATE_SLOWLY=600")
	b.until("the second step under way", func() bool {
		return b.number("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") == 1
	})
	second := run("b")
	first.Kill()
	b.ends(second, 0)
	third := run("c")
	b.ends(third, 0)
	if strings.Contains(third.out.String(), ": done") {
		b.Errorf("it ran again: %s", third.out.String())
	}
	if n := b.number("SELECT count(*) FROM email"); n != 300 {
		b.Errorf("%d addresses, want 300", n)
	}
	if n := b.number("SELECT count(*) FROM migration WHERE (step LIKE '1-%') = (node = 'a')"); n != 3 {
		b.Errorf("%d steps were made by whom they should be, want 3", n)
	}
}

// If a reconciliation is killed, the next leader continues it: every account has exactly one
// bill for each period.
func reconcile(b *bench) {
	b.sql("CREATE TABLE bill (period text, account text, cents bigint NOT NULL, token bigint NOT NULL)") // without a key: only the fence prevents a second bill
	run := func(node string) *job {
		return b.exec(node, []string{"RECONCILE_PERIOD=2026-11-15T13"}, "billing", "--", filepath.Join(b.bin, "reconcile"))
	}
	b.sql("BEGIN; LOCK TABLE bill IN SHARE MODE") // it blocks at its first bill
	first := run("a")
	b.until("the first bill under way", func() bool {
		return b.number("SELECT count(*) FROM pg_locks WHERE NOT granted") > 0
	})
	second := run("b")
	b.until("the second in line", func() bool { return b.leads("billing") == "a" })
	first.Kill()
	b.sql("COMMIT")
	b.ends(second, 0)
	again := run("c")
	b.ends(again, 0)
	if n := strings.Count(again.out.String(), "made before: true"); n != 300 {
		b.Errorf("%d steps were found made, want 300", n)
	}
	if n := b.number("SELECT count(*) FROM bill"); n != 300 {
		b.Errorf("%d bills, want 300", n)
	}
	if n := b.number("SELECT sum(cents) / 100 FROM bill"); n != 300*301/2 {
		b.Errorf("the sum is %d, want %d", n, 300*301/2)
	}
}

// A job in Python is refused by the SQL function once a newer leader has sealed, although it
// still runs. So is a job with the token of another session.
func invoices(b *bench) {
	b.sql("CREATE TABLE invoice (number int, token bigint NOT NULL)")
	j := b.exec("a", nil, "invoices", "--", "python3", filepath.Join(b.jobs, "invoices.py"), "100000")
	b.until("five invoices", func() bool { return b.number("SELECT count(*) FROM invoice") >= 5 })
	// A newer leader seals.
	b.sql("UPDATE tenure_mark SET token = token + 1, session = 'other' WHERE resource = 'invoices'")
	refused := func(j *job) {
		b.Helper()
		b.ends(j, 4)
		if !strings.Contains(j.out.String(), "was refused") {
			b.Errorf("it does not say why: %s", j.out.String())
		}
	}
	refused(j)
	// The next job gets the token that the other session has sealed with.
	refused(b.exec("b", nil, "invoices", "--", "python3", filepath.Join(b.jobs, "invoices.py"), "1"))
	if n := b.number("SELECT count(DISTINCT token) FROM invoice"); n != 1 {
		b.Errorf("%d tokens wrote, want 1", n)
	}
}

// A job with the Python client writes through the SQL function over the service, and is refused
// once a newer leader has sealed.
func client(b *bench) {
	const reset = "DROP TABLE IF EXISTS invoice; DELETE FROM tenure_mark WHERE resource = 'invoices';" // another job has the same table
	b.sql(reset + "CREATE TABLE invoice (number int, token bigint NOT NULL)")
	b.Cleanup(func() { _, _ = b.db.Exec(context.Background(), reset) })
	addrs, err := child.FreePorts(1)
	if err != nil {
		b.Fatal(err)
	}
	serve := &job{}
	cmd := exec.Command(filepath.Join(b.bin, "tenure"), "serve", "--store="+b.store, "--listen="+addrs[0])
	cmd.Stdout, cmd.Stderr = &serve.out, &serve.out
	child.DieWithParent(cmd)
	if serve.Process, err = child.Start(cmd, nil); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(serve.Kill)
	dir, err := filepath.Abs("../../clients/python")
	if err != nil {
		b.Fatal(err)
	}
	j := &job{}
	cmd = servertest.Psycopg(b, filepath.Join(dir, "src"), filepath.Join(dir, "examples", "invoices.py"), "a", "1000000")
	cmd.Env = append(cmd.Env, "TENURE_STORE=http://"+addrs[0], "DATABASE_URL="+b.url)
	cmd.Stdout, cmd.Stderr = &j.out, &j.out
	child.DieWithParent(cmd)
	if j.Process, err = child.Start(cmd, nil); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(j.Kill)
	b.until("five invoices", func() bool {
		select {
		case <-j.Exited:
			b.Fatalf("it has ended: %s %s", j.out.String(), serve.out.String())
		default:
		}
		return b.number("SELECT count(*) FROM invoice") >= 5
	})
	b.sql("UPDATE tenure_mark SET token = token + 1 WHERE resource = 'invoices'") // a newer leader seals
	sealed := b.number("SELECT count(*) FROM invoice")
	b.ends(j, 1)
	if n := b.number("SELECT count(*) FROM invoice"); n != sealed || !strings.Contains(j.out.String(), "refused: ") {
		b.Errorf("%d invoices, and %d when the newer leader sealed: %s", n, sealed, j.out.String())
	}
}
