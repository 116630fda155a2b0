package lab

import (
	"context"
	"fmt"
	"time"
)

// guard waits for the end of a program and says so, or starts it again.
func (f *Fleet) guard(p *process) {
	for {
		run, _ := p.running()
		pid := p.pid()
		select {
		case <-f.life.Done():
			return
		case <-run.Exited:
		}
		what := "ended by itself"
		if run.Err != nil {
			what = "ended: " + run.Err.Error()
		}
		if !f.cfg.Restart {
			f.cfg.Event(fmt.Sprintf("%s (pid %d) %s", p.id, pid, what))
			return
		}
		f.cfg.Event(fmt.Sprintf("%s (pid %d) %s; it is started again in %v", p.id, pid, what, f.cfg.RestartWait))
		if !f.again(p) {
			return
		}
	}
}

func (f *Fleet) again(p *process) bool {
	for {
		select {
		case <-f.life.Done():
			return false
		case <-time.After(f.cfg.RestartWait):
		}
		ctx, cancel := context.WithTimeoutCause(f.life, startTime, fmt.Errorf("more than %v", startTime))
		err := p.start(ctx)
		cancel()
		if err == nil {
			f.cfg.Event(fmt.Sprintf("%s is back (pid %d)", p.id, p.pid()))
			if err := f.write(); err != nil {
				f.cfg.Event(err.Error())
			}
			return true
		}
		f.cfg.Event(err.Error())
	}
}
