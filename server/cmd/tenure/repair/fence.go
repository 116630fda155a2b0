package repair

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

// sink is one resource of a sink.
type sink struct {
	mark    func(context.Context) (fence.Mark, error)
	advance func(context.Context, fence.Stamp) error
	close   func() error
}

const sinkHelp = "location of the resource: http://HOST:PORT of a ledger, a postgres:// URL, sqlite:PATH, or file:PATH of a fenced directory"

// openSink opens a resource by URL.
func openSink(at, resource string) (*sink, error) {
	scheme, rest, _ := strings.Cut(at, ":")
	switch scheme {
	case "http", "https":
		return openHTTP(at, resource)
	case "postgres", "postgresql":
		return openSQL("pgx", at, sqlfence.Postgres, resource)
	case "sqlite":
		if _, err := os.Stat(rest); err != nil {
			return nil, err // opening it would create it
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
		return nil, cli.Usage("sink: %q is not valid; use the %s", at, sinkHelp)
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

// sinkTimeout is the longest time for one command.
const sinkTimeout = 10 * time.Second

func newFenceShow() *cobra.Command {
	var at string
	cmd := &cobra.Command{
		Use:     "show RESOURCE --sink URL",
		Short:   "Show the highest token that a resource has seen.",
		Example: `  tenure fence show orders --sink=postgres://10.0.0.5/shop`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withSink(cmd, at, args[0], func(ctx context.Context, k *sink) error {
				m, err := k.mark(ctx)
				if err != nil {
					return err
				}
				if m.Token == 0 {
					return cli.Exit(cli.ExitNo, fmt.Errorf("resource %q has no mark: it was never written to", args[0]))
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
		Short: "Advance the mark of a resource to a token that the sink refuses as implausible.",
		Long: `Advance the mark of a resource to a token, by any distance. From then on the resource
refuses every lower token; a mark never goes down. Use it if a sink refuses the right
token as implausible, such as after ` + "`tenure epoch raise`" + ` raised the epoch by more than one.`,
		Example: `  tenure fence advance orders --sink=http://127.0.0.1:7420 --deployment=do2jx6qwbtlc2 --group=billing --token=43`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if s.Token, err = fence.ParseToken(token); err == nil {
				err = s.Validate()
			}
			if err != nil {
				return cli.Usage("--token, --deployment and --group are required: %w; see `tenure fence show` and `tenure epoch show`", err)
			}
			return withSink(cmd, at, args[0], func(ctx context.Context, k *sink) error {
				m, err := k.mark(ctx)
				if err != nil {
					return err
				}
				cli.Say(cmd, "resource %q is at token %d; it will refuse tokens below %d from now on", args[0], m.Token, s.Token)
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
	f.StringVar(&token, "token", "", "new token of the mark")
	f.StringVar(&s.Deployment, "deployment", "", "deployment of the token")
	f.StringVar(&s.Group, "group", "", "group of the token")
	f.StringVar(&s.Session, "session", "", "digest of the session that has the token, as in TENURE_FENCING_SESSION (default: the sink accepts the first session with this token)")
	f.BoolVar(&yes, "yes", false, "do not ask for confirmation")
	return cmd
}

func printMark(cmd *cobra.Command, m fence.Mark) error {
	session := ""
	if m.Session != "" {
		session = " session " + m.Session
	}
	out := cli.Output{W: cmd.OutOrStdout()}
	return out.Print(fmt.Sprintf("%s/%s token %d%s\n", m.Deployment, m.Group, m.Token, session))
}

func withSink(cmd *cobra.Command, at, resource string, do func(context.Context, *sink) error) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), sinkTimeout)
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
		return cli.Exit(cli.ExitFenced, err)
	default:
		return cli.Exit(cli.ExitFailure, fmt.Errorf("%w; check --sink", err))
	}
}
