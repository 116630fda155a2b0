package machine

// wakes is a heap of the seats that wait for a time, so that ten thousand groups
// cost a step no more than one does.
type wakes []*seat

func (w wakes) less(i, j int) bool {
	if w[i].wake != w[j].wake {
		return w[i].wake < w[j].wake
	}
	return w[i].order < w[j].order
}

func (w wakes) swap(i, j int) {
	w[i], w[j] = w[j], w[i]
	w[i].place, w[j].place = i, j
}

func (w wakes) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if !w.less(i, parent) {
			return
		}
		w.swap(i, parent)
		i = parent
	}
}

func (w wakes) down(i int) {
	for {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(w); c++ {
			if w.less(c, least) {
				least = c
			}
		}
		if least == i {
			return
		}
		w.swap(i, least)
		i = least
	}
}

// fix puts s where its wake belongs: in, out, or to another place.
func (w *wakes) fix(s *seat, waits bool) {
	switch {
	case s.place < 0 && waits:
		s.place = len(*w)
		*w = append(*w, s)
		w.up(s.place)
	case s.place >= 0 && !waits:
		i, last := s.place, len(*w)-1
		w.swap(i, last)
		(*w)[last] = nil
		*w = (*w)[:last]
		s.place = -1
		if i < last {
			w.down(i)
			w.up(i)
		}
	case s.place >= 0:
		w.down(s.place)
		w.up(s.place)
	}
}
