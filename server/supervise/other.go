//go:build !unix

package supervise

import (
	"errors"
	"os"

	"github.com/tenurehq/tenure"
)

// wholeTree: nothing is seen here.
const wholeTree = false

// Called reports whether this process was started to be a keeper.
func Called([]string) bool { return false }

// Main is not called.
func Main([]string) int { return CodeFailed }

type guard struct{}

func spawn(*Config, string, tokenFile) (*guard, error) {
	return nil, errors.New("commands are not run on this system: it has no process groups to stop them by")
}

func (*guard) release() {}

type outcome struct {
	code      int
	lost, err error
	asked     bool
}

func (r *runner) serve(*tenure.Term, *guard) outcome { return outcome{} }

func (r *runner) listen() (stop func()) { return func() {} }

func asksForEnd(os.Signal) bool { return true }

func writeNow(uintptr, []byte) (int, error) { return 0, errors.ErrUnsupported }

func number(os.Signal) int { return 0 }

func cannotRun(_ string, err error) *CodeError { return &CodeError{CodeCannotRun, err} }
