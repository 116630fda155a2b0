package check

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/tenurehq/tenure/clock"
)

// reorder is how many lines late an event may stand in its file: as many as are
// written by others between the end of a call and its line.
const reorder = 1 << 14

// ordered is each in the order of the events' instants over all files.
func ordered(ctx context.Context, dir string, want func(string) bool, see func(Event, Place), broken func(*historyError)) error {
	paths, err := files(dir)
	if err != nil {
		return err
	}
	next := &entries{}
	var opened []*lines
	defer func() {
		for _, l := range opened {
			l.close()
		}
	}()
	for _, path := range paths {
		l, err := open(path)
		if err != nil {
			return err
		}
		opened = append(opened, l)
		s := &source{lines: l, want: want, broken: broken}
		for range reorder {
			if err := s.fill(next); err != nil {
				return err
			}
		}
	}
	for n := 0; next.Len() > 0; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		first := heap.Pop(next).(entry)
		if s := first.from; first.event.when() < s.passed {
			broken(&historyError{first.at, fmt.Sprintf("more than %d lines too late for its instant: sort the file", reorder)})
		} else {
			s.passed = first.event.when()
			see(first.event, first.at)
		}
		if err := first.from.fill(next); err != nil {
			return err
		}
	}
	return nil
}

// source is a file of which up to reorder lines are among the entries.
type source struct {
	lines  *lines
	want   func(string) bool
	broken func(*historyError)
	passed clock.Instant // of the last event that was seen
	over   bool
}

// fill adds the next line of the file, if there is one.
func (s *source) fill(to *entries) error {
	if s.over {
		return nil
	}
	e, err := s.lines.next(s.want)
	var h *historyError
	switch {
	case err == nil:
		heap.Push(to, entry{e, s.lines.at, s})
		return nil
	case errors.As(err, &h):
		s.broken(h)
	case !errors.Is(err, io.EOF):
		return err
	}
	s.over = true
	return nil
}

type entry struct {
	event Event
	at    Place
	from  *source
}

// entries is a heap of the next events of all files, the earliest first.
type entries []entry

func (h entries) Len() int { return len(h) }
func (h entries) Less(i, j int) bool {
	if a, b := h[i].event.when(), h[j].event.when(); a != b {
		return a < b
	}
	return h[i].at.Line < h[j].at.Line
}
func (h entries) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *entries) Push(x any)   { *h = append(*h, x.(entry)) }
func (h *entries) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = entry{}
	*h = (*h)[:last]
	return x
}
