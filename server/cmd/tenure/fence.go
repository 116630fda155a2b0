package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/spf13/cobra"
	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/filefence"
	"github.com/tenurehq/tenure/fence/sqlfence"
	"github.com/tenurehq/tenure/server/cli"
)

// sink is what an operator does to one.
type sink struct {
	mark    func(context.Context) (fence.Mark, error)
	advance func(context.Context, fence.Stamp) error
	close   func() error
}

const sinkHelp = `where the resource is: http://HOST:PORT of a ledger, a postgres:// URL,
sqlite:PATH, or file:PATH of a guarded directory`

// openSink finds a resource by URL.
func openSink(at, resource string) (*sink, error) {
	scheme, rest, _ := strings.Cut(at, ":")
	switch scheme {
	case "http", "https":
		return openHTTP(at, resource)
	case "postgres", "postgresql":
		return openSQL("pgx", at, sqlfence.Postgres, resource)
	case "sqlite":
		if _, err := os.Stat(rest); err != nil {
			return nil, err // it would be made
		}
		return openSQL("sqlite", "file:"+url.PathEscape(rest)+"?_txlock=immediate&_pragma=busy_timeout(5000)", sqlfence.SQLite, resource)
	case "file":
		if _, err := os.Stat(rest); err != nil {
			return nil, err
		}
		d, err := filefence.Open(rest)
		if err != nil {
			return nil, err
		}
		return &sink{mark: d.Mark, advance: d.Advance, close: d.Close}, nil
	default:
		return nil, cli.Exit(exitUsage, errors.New("sink: say with --sink "+strings.ReplaceAll(sinkHelp, "\n", " ")))
	}
}

func openSQL(driver, dsn string, d sqlfence.Dialect, resource string) (*sink, error) {
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return nil, err
	}
	k := d.Sink(db, resource)
	return &sink{mark: k.Mark, advance: k.Advance, close: db.Close}, nil
}

func newFence() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fence",
		Short: "See and move the mark of a resource",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_ = cmd.Help()
			return cli.Exit(exitUsage, errors.New("mark or advance?"))
		},
	}
	cmd.AddCommand(newFenceMark(), newFenceAdvance())
	return cmd
}

// fenceCall bounds what these verbs wait for.
const fenceCall = 10 * time.Second

func newFenceMark() *cobra.Command {
	var at string
	cmd := &cobra.Command{
		Use:   "mark RESOURCE --sink URL",
		Short: "Show the highest token that a resource has seen",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withSink(cmd, at, args[0], func(ctx context.Context, k *sink) error {
				m, err := k.mark(ctx)
				if err != nil {
					return err
				}
				if m.Token == 0 {
					return cli.Exit(exitNo, fmt.Errorf("resource %q has no mark: nobody has written to it yet", args[0]))
				}
				return printMark(cmd, m)
			})
		},
	}
	cmd.Flags().StringVar(&at, "sink", "", sinkHelp)
	return cmd
}

func newFenceAdvance() *cobra.Command {
	var at, token string
	var s fence.Stamp
	var yes bool
	cmd := &cobra.Command{
		Use:   "advance RESOURCE --sink URL --token N --deployment D --group G",
		Short: "Move the mark of a resource up, past what sinks refuse as implausible",
		Long: `Move the mark of a resource up to a token, however far. From then on every leader
with a lower token is refused, for good: a mark never goes down. It is for the day
on which a sink refuses the right token as implausible, as after ` + "`tenure epoch raise`" + `
has raised the epoch by more than one.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if s.Token, err = fence.ParseToken(token); err == nil {
				err = s.Validate()
			}
			if err != nil {
				return cli.Exit(exitUsage, fmt.Errorf("token, deployment and group (`tenure fence mark` and `tenure epoch show` tell them): %w", err))
			}
			return withSink(cmd, at, args[0], func(ctx context.Context, k *sink) error {
				m, err := k.mark(ctx)
				if err != nil {
					return err
				}
				cli.Say(cmd, "resource %q is at token %d; after this, tokens below %d are refused for good", args[0], m.Token, s.Token)
				if err := cli.Confirm(cmd, yes); err != nil {
					return err
				}
				if err := k.advance(ctx, s); err != nil {
					return err
				}
				if m, err = k.mark(ctx); err != nil {
					return err
				}
				return printMark(cmd, m)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&at, "sink", "", sinkHelp)
	f.StringVar(&token, "token", "", "the token to move to")
	f.StringVar(&s.Deployment, "deployment", "", "whose it is")
	f.StringVar(&s.Group, "group", "", "and of which group")
	f.StringVar(&s.Session, "session", "", "the digest of the session that has the token, as in TENURE_FENCING_SESSION (default unknown: the sink accepts the first session with this token)")
	f.BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func printMark(cmd *cobra.Command, m fence.Mark) error {
	session := ""
	if m.Session != "" {
		session = " session " + m.Session
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s/%s token %d%s\n", m.Deployment, m.Group, m.Token, session)
	return err
}

func withSink(cmd *cobra.Command, at, resource string, do func(context.Context, *sink) error) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), fenceCall)
	defer cancel()
	k, err := openSink(at, resource)
	if err == nil {
		err = errors.Join(do(ctx, k), k.close())
	}
	var exit *cli.ExitError
	switch {
	case err == nil || errors.As(err, &exit):
		return err
	case errors.Is(err, fence.ErrRefused):
		return cli.Exit(exitFenced, err)
	default:
		return cli.Exit(exitFailure, err)
	}
}
