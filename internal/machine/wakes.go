package machine

import "container/heap"

// wakes is a heap of the groups that have a timer, so that the cost of a step does
// not depend on the number of groups.
type wakes []*groupState

func (w wakes) Len() int { return len(w) }

func (w wakes) Less(i, j int) bool {
	if w[i].wake != w[j].wake {
		return w[i].wake < w[j].wake
	}
	return w[i].order < w[j].order
}

func (w wakes) Swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].place, w[j].place = i, j
}

func (w *wakes) Push(s any) {
	s.(*groupState).place = len(*w)
	*w = append(*w, s.(*groupState))
}

func (w *wakes) Pop() any {
	last := len(*w) - 1
	s := (*w)[last]
	(*w)[last], s.place = nil, -1
	*w = (*w)[:last]
	return s
}

// fix adds s, removes it, or moves it to where its wake belongs.
func (w *wakes) fix(s *groupState, waits bool) {
	switch {
	case s.place < 0 && waits:
		heap.Push(w, s)
	case s.place >= 0 && !waits:
		heap.Remove(w, s.place)
	case s.place >= 0:
		heap.Fix(w, s.place)
	}
}
