package ledger

import (
	"database/sql"
	"log/slog"
	"strings"
	"testing"

	"github.com/tenurehq/tenure/internal/servertest"
)

// On PostgreSQL a commit is on disk when it is answered, even if the default of the server or
// the URL is asynchronous.
func TestSynchronousCommit(t *testing.T) {
	server := servertest.Postgres(t)
	// options=-c synchronous_commit=off
	url := server.URL() + "&options=-c%20synchronous_commit%3Doff"
	if !strings.Contains(server.URL(), "?") {
		t.Fatalf("the URL %s has no query to add to", server.URL())
	}
	raw, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	setting := func(q interface{ QueryRow(string, ...any) *sql.Row }) (now string) {
		t.Helper()
		if err := q.QueryRow("SELECT current_setting('synchronous_commit')").Scan(&now); err != nil {
			t.Fatal(err)
		}
		return now
	}
	if now := setting(raw); now != "off" {
		t.Fatalf("the default is %s, so this shows nothing", now)
	}
	l, err := Open(t.Context(), Config{DB: url, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	// Only the ledger uses the connection that writes.
	var now string
	if err := l.db.Writer().QueryRowContext(t.Context(), "SELECT current_setting('synchronous_commit')").Scan(&now); err != nil || now != "on" {
		t.Errorf("the ledger commits with %q, %v", now, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
