package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/server/auth"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/storecli"
)

// newToken is the output of `serve token`. The node gets Token, the service Entry.
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
		Short: "Make a bearer token for a node.",
		Long: `Make a bearer token for a node. The command prints one line of JSON: "token" is for the
node and is not shown again; "entry" holds its hash. Add the entry to the file that serve
reads with --tokens, {"tokens": [ENTRY, …]}. A running service sees the change within
seconds. Several tokens may have the same name, so a token can be replaced without a gap.`,
		Example: `  tenure serve token node-1 --expires=720h`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := storecli.CheckNode(args[0]); err != nil {
				return err
			}
			if lasts < 0 {
				return cli.Usage("expires: must not be negative")
			}
			made := newToken{Entry: tokenEntry{Name: args[0]}}
			made.Token, made.Entry.SHA256 = auth.NewToken()
			if lasts > 0 {
				made.Entry.Expires = time.Now().Add(lasts).UTC().Truncate(time.Second)
			}
			if err := json.NewEncoder(cmd.OutOrStdout()).Encode(made); err != nil {
				return cli.Exit(cli.ExitFailure, fmt.Errorf("standard output: %w", err))
			}
			cmd.PrintErrf("give the token to %s, and add the entry to the file of --tokens; the token is not shown again\n", args[0])
			return nil
		},
	}
	cmd.Flags().DurationVar(&lasts, "expires", 0, "how long the token is valid, such as 720h (default: without limit)")
	return cmd
}
