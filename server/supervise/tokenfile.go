package supervise

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/clock"
)

// What the command finds in its environment.
const (
	EnvGroup      = "TENURE_GROUP"
	EnvNode       = "TENURE_NODE"
	EnvToken      = "TENURE_FENCING_TOKEN"
	EnvSession    = "TENURE_FENCING_SESSION" // fence.Stamp.Session of the term
	EnvDeployment = "TENURE_DEPLOYMENT"
	// EnvTokenFile names a file of lines key=value: group, node, deployment, token, session,
	// deadline (RFC 3339, by this machine's wall clock: for people) and
	// deadline_boottime_ns (CLOCK_BOOTTIME: for programs). It is replaced as a whole on
	// each beat.
	EnvTokenFile = "TENURE_TOKEN_FILE"
)

// tokenFile is kept in a directory of its own, which others cannot read.
type tokenFile struct{ dir, path string }

func newTokenFile() (tokenFile, error) {
	dir, err := os.MkdirTemp("", "tenure-exec-")
	if err != nil {
		return tokenFile{}, fmt.Errorf("keep: token file: %w", err)
	}
	return tokenFile{dir: dir, path: filepath.Join(dir, "token")}, nil
}

// newSuffix is of the file that is about to replace it.
const newSuffix = ".new"

func (f tokenFile) write(term *tenure.Term, now, deadline clock.Instant) error {
	s := term.Stamp(0)
	text := fmt.Sprintf("group=%s\nnode=%s\ndeployment=%s\ntoken=%d\nsession=%s\ndeadline=%s\ndeadline_boottime_ns=%d\n",
		s.Group, term.Candidate().ID, s.Deployment, s.Token, s.Session, time.Now().Add(deadline.Sub(now)).UTC().Format(time.RFC3339Nano), deadline)
	next := f.path + newSuffix
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(next, f.path)
}

func (f tokenFile) remove() { _ = os.RemoveAll(f.dir) }
