package lab

import (
	"strings"
	"testing"

	"github.com/tenurehq/tenure/lab/labapi"
)

// The commands that `lab up` prints stay right when another node leads: they name no process.
func TestHints(t *testing.T) {
	var file labapi.FleetFile
	file.Engine.PID = 4711
	file.Nodes = make([]labapi.NodeFile, 2)
	file.Nodes[0].PID, file.Nodes[1].PID = 4712, 4713
	text := hints(file, "fleet.json", true)
	for _, command := range []string{"chaos kill-leader", "chaos gc-pause-leader", "chaos transfer-leader", "chaos partition-leader"} {
		if !strings.Contains(text, command+"\n") {
			t.Errorf("no %q in %s", command, text)
		}
	}
	if strings.Contains(text, "471") {
		t.Errorf("a process id is named: %s", text)
	}
}
