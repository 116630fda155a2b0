// Command chaos injects faults into a fleet that `lab up` runs, into its leader or into
// named processes:
//
//	chaos kill-leader                                  SIGKILL
//	chaos partition-leader --secs=6 --from=engine --way=both
//	chaos gc-pause-leader --ms=3000 [--between]        SIGSTOP, SIGCONT
//	chaos skew-leader --ms=500 [--ppm=10000] --secs=6  a wrong clock
//	chaos resign-leader                                asked to resign
//	chaos transfer-leader --to=node-2                  asked to hand over
//	chaos flap-leader --for=20s --seed=1               a connection that comes and goes
//	chaos stop-leader                                  SIGTERM: it hands over
//	chaos kill --what=engine-1,engine-2                SIGKILL; the fleet restarts them
//	chaos pause --what=ledger --ms=3000
//	chaos partition --what=node-1,node-2 --from=peers --secs=6
//	chaos disk-sync --secs=6                           the ledger's syncs fail; disk-full: its writes
//	chaos kill-at-moment --at=granted --trigger=kill   during a change of leader; pause-at-moment
//	chaos churn --every=5s --for=10m                   kills the leader again and again
//	chaos list                                         the fleet, and the faults in effect
//	chaos heal                                         undoes what a killed chaos has left
//
// It finds the fleet (--fleet FILE, else the one that this user runs) and its leader. On
// standard error it says what it did and healed, when, and what shows the effect. The result
// goes to standard output, as JSON with -o json. Every flag can be set in the environment:
// --fleet is CHAOS_FLEET. Flags may have one dash or two. SIGINT, SIGTERM and SIGHUP end a
// fault early; it is healed first, however many signals come.
//
// Exit codes: 0 the fault had an effect and is healed, 1 failure, also if nothing shows an
// effect or the leader changed meanwhile, 2 wrong usage, 3 nobody leads.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/tenurehq/tenure/lab/chaos/inspect"
)

const (
	exitOK       = 0
	exitFailure  = 1
	exitUsage    = 2
	exitNoLeader = 3
)

func main() {
	signals := make(chan os.Signal, 1)
	// A second signal must not interrupt healing, which is bounded.
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	// A closed output must not interrupt it either.
	signal.Ignore(syscall.SIGPIPE)
	ctx, cancel := context.WithCancelCause(context.Background())
	go func() {
		s := <-signals
		cancel(fmt.Errorf("stopped by signal: %v", s))
	}()
	os.Exit(run(ctx, os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr))
}

// run runs the program and returns its exit code.
func run(ctx context.Context, args []string, env func(string) (string, bool), stdout, stderr io.Writer) int {
	s, err := parse(args, env, stderr)
	switch {
	case errors.Is(err, errHelp):
		return exitOK
	case err != nil:
		complain(stderr, err)
		return exitUsage
	}
	if err = s.run(ctx, stdout, stderr); err == nil {
		return exitOK
	}
	complain(stderr, err)
	if errors.Is(err, inspect.ErrNoLeader) {
		return exitNoLeader
	}
	return exitFailure
}

func complain(w io.Writer, err error) {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		_, _ = fmt.Fprintf(w, "error: %s\n", strings.TrimPrefix(line, "chaos: "))
	}
}
