package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/server/auth/bearer"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/storecli"
)

// newCredential is the output of `serve credential`. The node gets Credential, the service
// Entry.
type newCredential struct {
	Credential string          `json:"credential"`
	Entry      credentialEntry `json:"entry"`
}

// credentialEntry is one of "credentials" in the file of --credentials.
type credentialEntry struct {
	Name    string    `json:"name"`
	SHA256  string    `json:"sha256"`
	Expires time.Time `json:"expires,omitzero"`
}

func newServeCredential() *cobra.Command {
	var lasts time.Duration
	cmd := &cobra.Command{
		Use:   "credential NAME",
		Short: "Make a bearer credential for a node.",
		Long: `Make a bearer credential for a node. The command prints one line of JSON: "credential" is
for the node and is not shown again; "entry" holds its hash. Add the entry to the file that
serve reads with --credentials, {"credentials": [ENTRY, …]}. A running service sees the change
within seconds. Several credentials may have the same name, so one can be replaced without a gap.`,
		Example: `  tenure serve credential node-1 --expires=720h`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := storecli.CheckNode(args[0]); err != nil {
				return err
			}
			if lasts < 0 {
				return cli.Usage("expires: must not be negative")
			}
			made := newCredential{Entry: credentialEntry{Name: args[0]}}
			made.Credential, made.Entry.SHA256 = bearer.NewCredential()
			if lasts > 0 {
				made.Entry.Expires = time.Now().Add(lasts).UTC().Truncate(time.Second)
			}
			if err := json.NewEncoder(cmd.OutOrStdout()).Encode(made); err != nil {
				return cli.Exit(cli.ExitFailure, fmt.Errorf("standard output: %w", err))
			}
			cmd.PrintErrf("give the credential to %s, and add the entry to the file of --credentials; the credential is not shown again\n", args[0])
			return nil
		},
	}
	cmd.Flags().DurationVar(&lasts, "expires", 0, "how long the credential is valid, such as 720h (default: without limit)")
	return cmd
}
