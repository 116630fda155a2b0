package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/cli"
)

// newToken is what `serve token` prints. Entry is for the service, Token for its holder,
// and neither can be made from the other.
type newToken struct {
	Token string     `json:"token"`
	Entry tokenEntry `json:"entry"`
}

// tokenEntry is one of "tokens" in the file of --tokens.
type tokenEntry struct {
	Name    string    `json:"name"`
	SHA256  string    `json:"sha256"`
	Expires time.Time `json:"expires,omitzero"`
}

func newServeToken() *cobra.Command {
	var lasts time.Duration
	cmd := &cobra.Command{
		Use:   "token NAME",
		Short: "Make a bearer token for a node: shown once, for it to keep, with the entry for the file of --tokens",
		Long: `Make a bearer token for a node. It prints one line of JSON: "token" is for the node and
is shown nowhere else; "entry" has its hash, and belongs into the list of the file that
serve reads with --tokens, {"tokens": [ENTRY, …]}. A running service sees the change
within seconds. Several tokens may have one name, so that one can follow another
without a gap.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !lease.ValidName(args[0]) {
				return cli.Exit(exitUsage, fmt.Errorf("name: %q is no name of a node: 1 to 63 of a-z 0-9 . _ -, beginning with a letter or digit", args[0]))
			}
			if lasts < 0 {
				return cli.Exit(exitUsage, errors.New("expires: must not be negative"))
			}
			made := newToken{Entry: tokenEntry{Name: args[0]}}
			made.Token, made.Entry.SHA256 = auth.NewToken()
			if lasts > 0 {
				made.Entry.Expires = time.Now().Add(lasts).UTC().Truncate(time.Second)
			}
			if err := json.NewEncoder(cmd.OutOrStdout()).Encode(made); err != nil {
				return cli.Exit(exitFailure, fmt.Errorf("standard output: %w", err))
			}
			cmd.PrintErrf("give the token to %s, and put the entry into the file of --tokens; the token is not shown again\n", args[0])
			return nil
		},
	}
	cmd.Flags().DurationVar(&lasts, "expires", 0, "how long it holds, such as 720h (default for ever)")
	return cmd
}
