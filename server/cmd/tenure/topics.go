package main

import "github.com/spf13/cobra"

func newExitCodes() *cobra.Command {
	return &cobra.Command{
		Use:   "exit-codes",
		Short: "What the exit codes mean",
		Long: `Exit codes of all verbs but exec:

  0  ok
  1  failure: it cannot be done, or (doctor, explain) something is broken
  2  wrong usage, or not confirmed: nothing was done
  3  the answer is no: nobody leads, the leader refused, there is no such successor
  4  fenced: the token or the version that was meant is not the newest
  5  denied: the store does not know who is asking, or does not allow it
  6  unavailable: no answer, or none yet; try again

Exit codes of exec: the command's own, and

   75  leadership was lost, and the command was stopped
  124  not elected in time
  125  exec itself failed
  126  the command cannot be run
  127  the command was not found
  128+n  it died of signal n`,
	}
}

func newEnvironment() *cobra.Command {
	return &cobra.Command{
		Use:   "environment",
		Short: "Flags as variables of the environment",
		Long: `Every flag of a verb can be given in the environment, after the names of program and
verb: --limit of history is TENURE_HISTORY_LIMIT, --yes of step-down is
TENURE_STEP_DOWN_YES. These mean the same for all verbs and need no verb:

  TENURE_STORE                where the elections are
  TENURE_DEV                  an engine of the process's own
  TENURE_STORE_PREFIX         prefix of every key in etcd
  TENURE_STORE_CA             file of the authority that signs the store's certificates
  TENURE_STORE_CERT           file of our certificate
  TENURE_STORE_KEY            file of its key
  TENURE_STORE_USER           user at etcd
  TENURE_STORE_PASSWORD_FILE  file with its password
  TENURE_STORE_TOKEN_FILE     file with our token for a service
  TENURE_STORE_TOKEN          the token itself, which has no flag
  TENURE_TIMEOUT              how long one call to the store may take
  TENURE_OUTPUT               how to print

A flag goes before the variable of the verb, and that before the one without. NO_COLOR
(any value) turns colours off.`,
	}
}
