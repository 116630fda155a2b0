package main

import (
	"bytes"
	"database/sql"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/fence/filefence"
	"github.com/tenurehq/tenure/fence/sqlfence"
	"github.com/tenurehq/tenure/internal/servertest"
	"github.com/tenurehq/tenure/server/cli"
)

// An operator can read a mark and raise it past the slip rule, only after a confirmation, and
// never lower it, on every kind of sink.
func TestFenceAdvance(t *testing.T) {
	migrated := func(t *testing.T, driver, dsn string, d sqlfence.Dialect) {
		t.Helper()
		db, err := sql.Open(driver, dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close() }()
		if err := d.Migrate(t.Context(), db); err != nil {
			t.Fatal(err)
		}
	}
	for name, where := range map[string]func(t *testing.T) string{
		"file": func(t *testing.T) string {
			dir := t.TempDir()
			d, err := filefence.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			_ = d.Close()
			return "file:" + dir
		},
		"SQLite": func(t *testing.T) string {
			path := filepath.Join(t.TempDir(), "a b.db")
			migrated(t, "sqlite", "file:"+strings.ReplaceAll(path, " ", "%20"), sqlfence.SQLite)
			return "sqlite:" + path
		},
		"PostgreSQL": func(t *testing.T) string {
			url := servertest.Postgres(t).URL()
			migrated(t, "pgx", url, sqlfence.Postgres)
			return url
		},
	} {
		t.Run(name, func(t *testing.T) {
			at := where(t)
			tenure := func(wantCode int, wantOut, wantErr string, args ...string) {
				t.Helper()
				var stdout, stderr bytes.Buffer
				code := run(t.Context(), append(args, "--sink", at), environment(), strings.NewReader("y\n"), &stdout, &stderr)
				if code != wantCode || stdout.String() != wantOut || !strings.Contains(stderr.String(), wantErr) {
					t.Errorf("tenure %s: exit code %d, %q, %q; want %d, %q, %q", strings.Join(args, " "), code, &stdout, &stderr, wantCode, wantOut, wantErr)
				}
			}
			advance := func(token string, more ...string) []string {
				return append([]string{"fence", "advance", "invoices", "--token", token, "--deployment", "prod", "--group", "billing"}, more...)
			}
			tenure(cli.ExitNo, "", "invoices", "fence", "show", "invoices")
			tenure(cli.ExitUsage, "", "nothing was changed", advance("7")...)
			tenure(cli.ExitOK, "prod/billing token 7\n", "below 7", advance("7", "--yes")...)
			tenure(cli.ExitOK, "prod/billing token 5000000\n", "is at token 7", advance("5000000", "--yes")...)
			tenure(cli.ExitOK, "prod/billing token 5000000\n", "", "fence", "show", "invoices")
			tenure(cli.ExitOK, "prod/billing token 5000001 session 1f\n", "", advance("5000001", "--session", "1f", "--yes")...)
			tenure(cli.ExitOK, "prod/billing token 5000001 session 1f\n", "", "fence", "show", "invoices")
			tenure(cli.ExitUsage, "", "session", advance("5000002", "--session", "1 f", "--yes")...)
			tenure(cli.ExitFenced, "", "5000001", advance("6", "--yes")...)
			tenure(cli.ExitUsage, "", "1.5", advance("1.5", "--yes")...)
		})
	}
}

// A missing sink is an error, and is not created.
func TestFenceMissingSink(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for _, at := range []string{"", "ftp://x", "file:" + missing, "sqlite:" + missing, "http://127.0.0.1:1"} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), []string{"fence", "show", "invoices", "--sink", at}, environment(), strings.NewReader(""), &stdout, &stderr)
		if code == cli.ExitOK || code == cli.ExitNo || stderr.Len() == 0 || stdout.Len() > 0 {
			t.Errorf("%q: exit code %d, %q, %q", at, code, &stdout, &stderr)
		}
	}
}
