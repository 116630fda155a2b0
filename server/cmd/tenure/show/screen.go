package show

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/server/storecli"
	"github.com/tenurehq/tenure/store"
)

// screen is what `tenure top` shows. It is changed by updates of the watch and by keys, and
// reads no clock.
type screen struct {
	width, height int
	coloured      bool

	groups   map[string]*topGroup
	sessions map[store.SessionID]store.Session
	listed   map[string]bool // the groups of the snapshot that is being read
	synced   bool
	lost     time.Time // since when the store cannot be reached; zero: it can
	cause    error
	changes  []string // the newest last
	note     string   // the result of the last order

	sort     int
	filter   string
	selected string // a group
	first    int    // the first group in view
	typing   *prompt
	help     bool
}

type topGroup struct {
	view    store.View
	changes int // terms that began or ended since the start
}

// prompt asks for a line of text, or for y.
type prompt struct {
	question, text string
	confirm        bool
	answer         func(text string) *order
}

// order is what the user wants to be done to one term.
type order struct {
	view store.View
	verb store.Verb
	to   string
}

const (
	keyUp       = "\x1b[A"
	keyDown     = "\x1b[B"
	keyPageUp   = "\x1b[5~"
	keyPageDown = "\x1b[6~"
	keyHome     = "\x1b[H"
	keyEnd      = "\x1b[F"
	keyEscape   = "\x1b"
	keyEnter    = "\r"
	keyErase    = "\x7f"
)

var topOrders = []struct {
	name string
	less func(a, b *topGroup) int
}{
	{"name", func(*topGroup, *topGroup) int { return 0 }},
	{"newest term first", func(a, b *topGroup) int { return b.began().Compare(a.began()) }},
	{"most changes first", func(a, b *topGroup) int { return cmp.Compare(b.changes, a.changes) }},
	{"vacant first", func(a, b *topGroup) int { return cmp.Compare(a.view.State, b.view.State) }},
	{"leader", func(a, b *topGroup) int { return strings.Compare(a.view.Candidate.ID, b.view.Candidate.ID) }},
}

// keptChanges bounds the list of changes.
const keptChanges = 100

func newScreen(coloured bool) *screen {
	s := &screen{coloured: coloured, groups: make(map[string]*topGroup)}
	s.restart()
	return s
}

// restart prepares for the snapshot of a new watch. Groups stay in view.
func (s *screen) restart() {
	s.sessions, s.listed, s.synced = make(map[store.SessionID]store.Session), make(map[string]bool), false
}

func (g *topGroup) began() time.Time {
	if n := len(g.view.Terms); n > 0 {
		return g.view.Terms[n-1].Begin
	}
	return time.Time{}
}

// update adds what the watch yielded.
func (s *screen) update(u store.Update, now time.Time) {
	switch u.Kind {
	case store.Synced:
		s.synced, s.lost = true, time.Time{}
		maps.DeleteFunc(s.groups, func(name string, _ *topGroup) bool { return !s.listed[name] })
	case store.SessionBegan:
		s.sessions[u.Session.ID] = u.Session
	case store.SessionEnded:
		delete(s.sessions, u.Session.ID)
	case store.GroupChanged:
		s.listed[u.View.Group] = true
		g, known := s.groups[u.View.Group]
		if !known {
			g = &topGroup{}
			s.groups[u.View.Group] = g
		}
		if s.synced || known {
			changes, _ := store.Since(u.View, store.Cursor{Token: g.view.Token, State: g.view.State})
			for _, l := range changes {
				g.changes++
				what := fmt.Sprintf("%s leads %s (term %d)", l.Candidate.ID, l.Group, l.Token)
				if l.State != tenure.Led {
					what = fmt.Sprintf("%s has no leader: %s", l.Group, cmp.Or(l.Reason, "the term ended"))
				}
				s.changes = append(s.changes, now.Format("15:04:05 ")+what)
			}
			s.changes = s.changes[max(0, len(s.changes)-keptChanges):]
		}
		g.view = u.View
	}
}

// unreachable shows that the store cannot be reached.
func (s *screen) unreachable(err error, now time.Time) {
	if s.lost.IsZero() {
		s.lost = now
	}
	s.cause = err
}

// names returns the groups that the filter lets through, in order.
func (s *screen) names() []string {
	var names []string
	for name, g := range s.groups {
		if s.filter == "" || strings.Contains(name, s.filter) || strings.Contains(g.view.Candidate.ID, s.filter) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(topOrders[s.sort].less(s.groups[a], s.groups[b]), strings.Compare(a, b))
	})
	return names
}

// key handles a key. It returns what to do, and whether to stop.
func (s *screen) key(k string) (do *order, quit bool) {
	if s.typing != nil {
		return s.edit(k), k == "\x03"
	}
	move := 0
	switch k {
	case "q", "\x03":
		return nil, true
	case keyUp, "k":
		move = -1
	case keyDown, "j":
		move = 1
	case keyPageUp:
		move = -s.rows()
	case keyPageDown:
		move = s.rows()
	case keyHome, "g":
		move = -len(s.groups)
	case keyEnd, "G":
		move = len(s.groups)
	case "s":
		s.sort = (s.sort + 1) % len(topOrders)
	case "?", "h":
		s.help = !s.help
	case keyEscape:
		s.filter, s.help, s.note = "", false, ""
	case "/":
		s.typing = &prompt{question: "filter: ", text: s.filter, answer: func(text string) *order {
			s.filter = text
			return nil
		}}
	case "d", "t":
		s.ask(k == "t")
	}
	if names := s.names(); move != 0 && len(names) > 0 {
		s.selected = names[min(max(s.at(names)+move, 0), len(names)-1)]
	}
	return nil, false
}

// at is the place of the selected group, the first if it is gone.
func (s *screen) at(names []string) int { return max(0, slices.Index(names, s.selected)) }

// ask asks before the leader of the selected group is asked to give up or to hand over. The order
// is for the term that the user sees.
func (s *screen) ask(transfer bool) {
	names := s.names()
	if len(names) == 0 {
		return
	}
	v := s.groups[names[s.at(names)]].view
	switch {
	case !s.lost.IsZero():
		s.note = "the store cannot be reached: who leads is not known"
		return
	case v.State != tenure.Led:
		s.note = v.Group + " has no leader"
		return
	}
	do := &order{view: v, verb: store.StepDown}
	confirm := &prompt{confirm: true, question: fmt.Sprintf("ask %s to give up %s (term %d)? y/n ", v.Candidate.ID, v.Group, v.Token), answer: func(text string) *order {
		if text == "y" {
			return do
		}
		return nil
	}}
	if transfer {
		s.typing = &prompt{question: fmt.Sprintf("hand %s (term %d) over to node: ", v.Group, v.Token), answer: func(text string) *order {
			if text == "" {
				return nil
			}
			do.verb, do.to = store.Transfer, text
			confirm.question = fmt.Sprintf("ask %s to hand %s (term %d) over to %s? y/n ", v.Candidate.ID, v.Group, v.Token, text)
			s.typing = confirm
			return nil
		}}
		return
	}
	s.typing = confirm
}

// edit handles a key while the user types an answer.
func (s *screen) edit(k string) *order {
	p := s.typing
	switch {
	case k == keyEscape, p.confirm && k != "y":
		s.typing = nil
	case p.confirm, k == keyEnter:
		s.typing = nil
		if p.confirm {
			p.text = k
		}
		return p.answer(p.text)
	case k == keyErase:
		_, n := utf8.DecodeLastRuneInString(p.text)
		p.text = p.text[:len(p.text)-n]
	case !strings.HasPrefix(k, keyEscape) && len(p.text) < 64 && clean(k) == k:
		p.text += k
	}
	return nil
}

// rows is the number of groups in view: the others are the heading, the titles, up to five
// changes, and a line for keys or a prompt.
func (s *screen) rows() int { return max(1, s.height-3-s.shownChanges()) }

func (s *screen) shownChanges() int { return min(5, len(s.changes), max(0, s.height/4)) }

// clean replaces what a terminal would obey. Reasons and errors are written by others.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, text)
}

// fit cuts or pads a text to a width.
func fit(text string, width int) string {
	text = clean(text)
	n := utf8.RuneCountInString(text)
	if n > width && width > 0 {
		return string([]rune(text)[:width-1]) + "…"
	}
	return text + strings.Repeat(" ", max(0, width-n))
}

const (
	styleReset = "\x1b[0m"
	styleBold  = "\x1b[1m"
	styleFaint = "\x1b[2m"
	styleRow   = "\x1b[7m" // the selected row, also without colours
	styleAlarm = "\x1b[33m"
)

func (s *screen) style(code, text string) string {
	if !s.coloured && code != styleRow {
		return text
	}
	return code + text + styleReset
}

// render returns the lines of the screen. No line is wider than the screen.
func (s *screen) render(now time.Time) []string {
	names := s.names()
	led := 0
	for _, g := range s.groups {
		if g.view.State == tenure.Led {
			led++
		}
	}
	title := fmt.Sprintf("tenure top  %d groups, %d without a leader, %d sessions, by %s", len(s.groups), len(s.groups)-led, len(s.sessions), topOrders[s.sort].name)
	if s.filter != "" {
		title += fmt.Sprintf(", %d match %q", len(names), s.filter)
	}
	lines := []string{s.style(styleBold, fit(title, s.width))}
	switch {
	case !s.lost.IsZero():
		lines[0] = s.style(styleAlarm, fit(fmt.Sprintf("disconnected for %s; who leads is not known: %v", storecli.Short(now.Sub(s.lost)), s.cause), s.width))
	case !s.synced:
		lines[0] = s.style(styleBold, fit("tenure top  connecting", s.width))
	}
	if s.help {
		lines = append(lines, s.helpLines()...)
	} else {
		lines = append(lines, s.table(names, now)...)
		for _, c := range s.changes[len(s.changes)-s.shownChanges():] {
			lines = append(lines, s.style(styleFaint, fit(c, s.width)))
		}
	}
	lines = lines[:min(len(lines), max(1, s.height-1))]
	bottom := cmp.Or(s.note, "d step down  t transfer  s sort  / filter  ? help  q quit")
	if s.typing != nil {
		bottom = s.typing.question + s.typing.text + "_"
	}
	return append(lines, fit(bottom, s.width))
}

func (s *screen) helpLines() []string {
	var lines []string
	for _, text := range []string{
		"", "up, down, j, k     select a group (also Page Up, Page Down, Home, End)",
		"s                  sort by name, age of the term, changes, state, leader",
		"/                  show groups and leaders that contain a text", "Escape             show all again",
		"d                  ask the leader of the selected group to give it up", "t                  ask it to hand the group over to another node",
		"q                  quit", "",
		"CHANGES counts the terms that began or ended since the start of this program.",
	} {
		lines = append(lines, fit(text, s.width))
	}
	return lines
}

// The columns, in the order in which a narrow screen keeps them.
var topColumns = []struct {
	title string
	width int
}{{"GROUP", 24}, {"LEADER", 20}, {"TERM", 8}, {"FOR", 8}, {"CANDIDATES", 10}, {"CHANGES", 8}, {"LAST END", 14}}

func (s *screen) table(names []string, now time.Time) []string {
	columns, used := topColumns[:1], topColumns[0].width
	for _, c := range topColumns[1:] {
		if used += 1 + c.width; used > s.width {
			break
		}
		columns = topColumns[:len(columns)+1]
	}
	row := func(cells []string) string {
		var b strings.Builder
		for i, c := range columns {
			b.WriteString(fit(cells[i], c.width) + " ")
		}
		return fit(b.String(), s.width)
	}
	var titles []string
	for _, c := range topColumns {
		titles = append(titles, c.title)
	}
	lines := []string{s.style(styleBold, row(titles))}
	at := s.at(names)
	s.first = min(max(s.first, at-s.rows()+1), at)
	s.first = max(0, min(s.first, len(names)-s.rows()))
	for i := s.first; i < min(len(names), s.first+s.rows()); i++ {
		line := row(s.cells(s.groups[names[i]], now))
		switch {
		case i == at:
			line = s.style(styleRow, line)
		case !s.lost.IsZero():
			line = s.style(styleFaint, line)
		case s.groups[names[i]].view.State != tenure.Led:
			line = s.style(styleAlarm, line)
		}
		lines = append(lines, line)
	}
	for len(lines) <= s.rows() {
		lines = append(lines, fit("", s.width))
	}
	return lines
}

func (s *screen) cells(g *topGroup, now time.Time) []string {
	v := g.view
	leader, since := "(none)", storecli.Dash("")
	if v.State == tenure.Led {
		leader, since = v.Candidate.ID, storecli.Short(now.Sub(g.began()))
	}
	if !s.lost.IsZero() { // the last known leader may have been replaced
		leader, since = "? "+leader, storecli.Dash("")
	}
	candidates := 0
	for _, session := range s.sessions {
		if session.Scope.Covers(v.Group) {
			candidates++
		}
	}
	last := storecli.Dash("")
	for _, t := range v.Terms {
		if !t.End.IsZero() {
			last = string(t.Reason)
		}
	}
	return []string{v.Group, leader, v.Token.String(), since, fmt.Sprint(candidates), fmt.Sprint(g.changes), last}
}
