package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/spf13/cobra"

	"github.com/tenurehq/tenure/pulse"
	"github.com/tenurehq/tenure/server/cli"
	"github.com/tenurehq/tenure/server/storecli"
	"github.com/tenurehq/tenure/store"
)

func newKeeper(env cli.Env) *cobra.Command {
	var socket string
	var hints []string
	cmd := storecli.New(env, storecli.Spec{
		Use:   "keeper",
		Short: "Watch over the processes of this host, and end the sessions of those that die.",
		Long: `Watch over the processes of this host that register, and end their sessions as soon as they
have died, so that another candidate leads within milliseconds instead of after the TTL.

A process registers its session over the socket (pulse.Dial in Go). Whoever may open the
socket can register only sessions that it has opened itself. The keeper acts on the death
of a process alone, which the kernel reports: a process that is stopped, silent or cut off
keeps its session. If the host dies, the TTL applies. It needs Linux 5.3 or later, and must
see the processes: in a container it needs the host's process ids.

With --hints it also watches over candidates of other hosts: it connects to their addresses,
and if such a connection ends and the address then refuses, it ends the session (reason
"suspected"). That may be wrong, so only sessions that were opened as fenced end this way.`,
		Example: `  tenure keeper --store=etcd://127.0.0.1:2379
  tenure keeper --socket=/run/tenure/keeper.sock`,
		Check: func([]string) error {
			if socket == "" {
				return fmt.Errorf("socket: must not be empty")
			}
			if len(hints) == 0 {
				return nil
			}
			return store.Scope(hints).Validate()
		},
		Run: func(ctx context.Context, r *storecli.Run, _ []string) error {
			l, err := pulse.Listen(socket)
			if err != nil {
				return fmt.Errorf("%w; choose another path with --socket", err)
			}
			log := storecli.Logger(r.Cmd.ErrOrStderr(), slog.LevelInfo)
			log.Info("ready", "socket", socket)
			var following sync.WaitGroup
			defer following.Wait()
			if len(hints) > 0 {
				following.Go(func() { pulse.NewHints(r.Store.Store, log).Run(ctx, hints) })
			}
			if err := pulse.NewKeeper(r.Store.Store, log).Serve(ctx, l); err != nil {
				return err
			}
			return context.Cause(ctx)
		},
	})
	cmd.Flags().StringSliceVar(&hints, "hints", nil, "patterns of groups whose fenced sessions also end when the address of their candidate refuses connections (default: none)")
	cmd.Flags().StringVar(&socket, "socket", "/run/tenure/keeper.sock", "unix socket to listen on; a name that begins with @ has no file")
	return cmd
}
