package pulse

import (
	"errors"
	"time"

	"github.com/tenurehq/tenure/store"
)

// ErrUnsupported: this system has no pidfd. The TTL applies.
var ErrUnsupported = errors.New("pulse: this system cannot prove the death of a process: it needs Linux 5.3 or later")

// ErrNoPeer: this kernel does not tell which process is at the other end of a socket.
var ErrNoPeer = errors.New("pulse: this kernel is older than Linux 6.5; `tenure keeper` needs only Linux 5.3")

// hello is the first message on a connection. It comes from the keeper.
type hello struct {
	Nonce string `json:"nonce"` // must be echoed in every request
	Error string `json:"error,omitempty"`
}

// request asks the keeper to watch over a session, or with Session "" to forget the one that the
// instance registered.
type request struct {
	Nonce      string          `json:"nonce"`
	Deployment string          `json:"deployment,omitempty"`
	Instance   string          `json:"instance"`
	Session    store.SessionID `json:"session,omitempty"`
}

// reply answers the requests in their order.
type reply struct {
	Error string `json:"error,omitempty"`
}

const (
	maxMessage = 1024
	// maxSessions is how many sessions one process can register.
	maxSessions = 1024
	// maxProcesses is how many processes one keeper watches over.
	maxProcesses = 4096
	// maxConnections is how many connections one process can have.
	maxConnections = 8
	// maxPeerConnections is how many connections one client of a server can have.
	maxPeerConnections = 256
	// callTimeout limits each message and each call to the store.
	callTimeout = 5 * time.Second
)
