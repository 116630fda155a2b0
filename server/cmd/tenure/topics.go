package main

import "github.com/spf13/cobra"

func newExitCodes() *cobra.Command {
	return &cobra.Command{
		Use:   "exit-codes",
		Short: "Exit codes",
		Long: `Exit codes of all commands except exec:

  0  success
  1  failure, or (doctor, explain) something is broken
  2  wrong usage, or not confirmed: nothing was changed
  3  the answer is no: no leader, the leader refused, no such candidate
  4  fenced: the given token or version is not the newest
  5  denied: the store does not know the caller, or does not allow the call
  6  unavailable: no answer, or none yet; try again

Exit codes of exec: that of the command, and

   75  leadership was lost and the command was stopped
  124  not elected in time
  125  exec itself failed
  126  the command cannot be run
  127  the command was not found
  128+n  the command was ended by signal n`,
	}
}

func newEnvironment() *cobra.Command {
	return &cobra.Command{
		Use:   "environment",
		Short: "Environment variables",
		Long: `Every flag of a command can be set in the environment, as TENURE_COMMAND_FLAG: --limit of
history is TENURE_HISTORY_LIMIT, --yes of step-down is TENURE_STEP_DOWN_YES. These apply
to all commands:

  TENURE_STORE                  store of the elections
  TENURE_DEV                    run a temporary engine in the process instead
  TENURE_STORE_PREFIX           prefix of every key in etcd
  TENURE_STORE_CA               CA file for the store's certificates
  TENURE_STORE_CERT             client certificate file for the store
  TENURE_STORE_KEY              key file of the client certificate
  TENURE_STORE_USER             etcd user
  TENURE_STORE_PASSWORD_FILE    file with the password of the engine's user
  TENURE_STORE_CREDENTIAL_FILE  file with the bearer credential for a service
  TENURE_STORE_CREDENTIAL       the bearer credential itself; it has no flag
  TENURE_TIMEOUT                longest time for one call to the store
  TENURE_OUTPUT                 output format

A flag has precedence over the command's own variable, and that over the shared one.
NO_COLOR (any value) turns colours off.`,
	}
}
