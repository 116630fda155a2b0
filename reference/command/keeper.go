package command

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/tenurehq/tenure/pulse"
	"github.com/tenurehq/tenure/reference/node"
	"github.com/tenurehq/tenure/store"
)

// keeperVariable has the node.EngineConfig for the keeper that --keeper=auto starts: this program
// again, without arguments. Other users cannot read the environment of a process.
const keeperVariable = "FLEET_NODE_KEEPER_ENGINE"

// Keeper turns this process into a keeper, and does not return, if a node has started it as one.
// Call it first in main.
func Keeper() {
	pulse.Main(func(ctx context.Context) (store.Store, error) {
		var cfg node.EngineConfig
		if err := json.Unmarshal([]byte(os.Getenv(keeperVariable)), &cfg); err != nil {
			return nil, fmt.Errorf("%s: %w", keeperVariable, err)
		}
		return cfg.Keeper(ctx)
	})
}

// withKeeper sets the keeper of --keeper. Without one the TTL applies, as on other systems than
// Linux. end closes the connection to it.
func withKeeper(which string, cfg *node.Config) (end func(), err error) {
	end = func() {}
	var c *pulse.Client
	switch {
	case which == "off":
		return end, nil
	case cfg.Store == node.StoreMem, which != "auto" && cfg.Store == node.StoreRaft:
		return end, &node.ConfigError{Field: "keeper", Rule: which + " cannot be used with --store=" + cfg.Store + "; use off, or auto with raft"}
	case which != "auto":
		c = pulse.Dial(which, cfg.Log)
	default:
		settings, err := json.Marshal(cfg.EngineConfig())
		if err == nil {
			err = os.Setenv(keeperVariable, string(settings))
		}
		if err != nil {
			return end, err
		}
		if c, err = pulse.Start(cfg.Log); err != nil {
			cfg.Log.Warn("no keeper watches over this process, so the TTL applies if it crashes", "error", err)
			return end, nil
		}
	}
	cfg.Keeper = c
	return func() { _ = c.Close() }, nil
}
