package machine

import "container/heap"

// wakes is a heap of the seats that wait for a time, so that ten thousand groups
// cost a step no more than one does.
type wakes []*seat

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
	s.(*seat).place = len(*w)
	*w = append(*w, s.(*seat))
}

func (w *wakes) Pop() any {
	last := len(*w) - 1
	s := (*w)[last]
	(*w)[last], s.place = nil, -1
	*w = (*w)[:last]
	return s
}

// fix puts s where its wake belongs: in, out, or to another place.
func (w *wakes) fix(s *seat, waits bool) {
	switch {
	case s.place < 0 && waits:
		heap.Push(w, s)
	case s.place >= 0 && !waits:
		heap.Remove(w, s.place)
	case s.place >= 0:
		heap.Fix(w, s.place)
	}
}
