//go:build !unix

package supervise

import (
	"os"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/server/supervise/keeper"
)

// keeper.New fails on this system, so nothing below is called.

func (r *runner) supervise(*tenure.Term, *keeper.Process) outcome { return outcome{} }

func (r *runner) listen() (stop func()) { return func() {} }

func asksForEnd(os.Signal) bool { return true }

func number(os.Signal) int { return 0 }

func cannotRun(_ string, err error) *CodeError { return &CodeError{CodeCannotRun, err} }
