package chaos

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/tenurehq/tenure/lab/labapi"
)

// running finds the fleet file of the one fleet that runs, where labs keep theirs
// unless they are told otherwise.
func running() (string, error) { return runningIn(os.TempDir()) }

func runningIn(dir string) (string, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "tenure-lab-*", "fleet.json"))
	if err != nil {
		return "", err
	}
	var live []string
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil || !ownedByUser(info) {
			continue
		}
		if file, err := labapi.ReadFleetFile(path); err == nil && answers(file) {
			live = append(live, path)
		}
	}
	switch len(live) {
	case 1:
		return live[0], nil
	case 0:
		return "", fmt.Errorf("%w: no fleet of yours runs (none in %s): start one with `lab up`, or say where its fleet file is with --fleet", ErrFleet, filepath.Join(dir, "tenure-lab-*"))
	}
	return "", fmt.Errorf("%w: %d fleets of yours run: say which with --fleet, %s", ErrFleet, len(live), strings.Join(live, " or "))
}

// answers reports whether a node of the fleet does. A file may be left over from a lab
// that was killed, and its ports may be another's.
func answers(file labapi.FleetFile) bool {
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	f := &Fleet{http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Second}}
	for _, n := range file.Nodes {
		if !loopback(n.URL) || !alive(n.PID) {
			continue
		}
		if isStopped(n.PID) && startedFor(n.PID, n.URL) { // it cannot answer, and is there
			return true
		}
		if s, err := f.status(ctx, n.URL); err == nil && s.NodeID == n.ID && s.Group == file.Group {
			return true
		}
	}
	return false
}
