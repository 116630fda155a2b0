// Command consul is the agent of Consul, which is all that the tests need of it. It builds in
// half the time of the whole program. Consul's license allows this use: it is a test server,
// and it is never shipped.
package main

import (
	"os"

	"github.com/hashicorp/consul/command/agent"
	"github.com/hashicorp/consul/command/cli"
	mcli "github.com/mitchellh/cli"
)

func main() {
	ui := &cli.BasicUI{BasicUi: mcli.BasicUi{Writer: os.Stdout, ErrorWriter: os.Stderr}}
	os.Exit(agent.New(ui).Run(os.Args[1:]))
}
