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
	var all merged
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
		if err := s.fill(); err != nil {
			return err
		}
		if len(s.early) > 0 {
			all = append(all, s)
		}
	}
	heap.Init(&all)
	for n := 0; len(all) > 0; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		s := all[0]
		first := heap.Pop(&s.early).(entry)
		if first.event.when() < s.passed {
			broken(&historyError{first.at, fmt.Sprintf("more than %d lines too late for its instant: sort the file", reorder)})
		} else {
			s.passed = first.event.when()
			see(first.event, first.at)
		}
		if err := s.fill(); err != nil {
			return err
		}
		if len(s.early) == 0 {
			heap.Pop(&all)
		} else {
			heap.Fix(&all, 0)
		}
	}
	return nil
}

type entry struct {
	event Event
	at    Place
}

// source is a file whose next lines are put in order.
type source struct {
	lines  *lines
	want   func(string) bool
	broken func(*historyError)
	early  entries
	passed clock.Instant
	over   bool
}

func (s *source) fill() error {
	for !s.over && len(s.early) < reorder {
		e, err := s.lines.next(s.want)
		var h *historyError
		switch {
		case err == nil:
			heap.Push(&s.early, entry{e, s.lines.at})
			continue
		case errors.As(err, &h):
			s.broken(h)
		case !errors.Is(err, io.EOF):
			return err
		}
		s.over = true
	}
	return nil
}

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

type merged []*source

func (h merged) Len() int           { return len(h) }
func (h merged) Less(i, j int) bool { return h[i].early[0].event.when() < h[j].early[0].event.when() }
func (h merged) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *merged) Push(x any)        { *h = append(*h, x.(*source)) }
func (h *merged) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}
