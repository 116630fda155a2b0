package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/lab/load"
	"github.com/tenurehq/tenure/reference/api"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/httpapi"
)

// newBare serves load.Bare until standard input ends. lab load starts it.
func newBare() *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:    "bare",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := cli.UntilEOF(cmd, true)
			defer cancel()
			ln, err := net.Listen("tcp", listen)
			if err != nil {
				return err
			}
			ready := api.Ready{ID: "bare", Addr: ln.Addr().String(), URL: "http://" + ln.Addr().String(), PID: os.Getpid()}
			if err := json.NewEncoder(cmd.OutOrStdout()).Encode(ready); err != nil {
				return err
			}
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			return httpapi.Serve(ctx, ln, load.Bare(), httpapi.Limits{Grace: time.Second}, log)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "host:port to serve on")
	return cmd
}

// startBare starts a bare handler in its own process.
func startBare(ctx context.Context) (url string, stop func(), err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.CommandContext(ctx, self, "bare")
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = 5 * time.Second
	stdin, ierr := cmd.StdinPipe()
	stdout, oerr := cmd.StdoutPipe()
	if err := errors.Join(ierr, oerr); err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("start the bare handler: %w", err)
	}
	stop = func() {
		_ = stdin.Close()
		_ = cmd.Wait() // it was asked to end
	}
	var ready api.Ready
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &ready)
	}
	if err != nil {
		stop()
		return "", nil, fmt.Errorf("start the bare handler: %w", err)
	}
	return ready.URL, stop, nil
}
