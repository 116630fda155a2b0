package show

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/store"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// led is a change: a node leads a group; without a node the term has ended.
func led(group, node string, token fence.Token) store.Update {
	v := store.View{Record: store.Record{Group: group, Token: token, Candidate: tenure.Candidate{ID: node}}, State: tenure.Led}
	t := store.Term{Token: token, Candidate: node, Begin: start}
	if node == "" {
		v.State = tenure.Vacant
		t.Candidate, t.End, t.Reason = "node-1", start.Add(time.Second), store.Expired
	}
	v.Terms = []store.Term{t}
	return store.Update{Kind: store.GroupChanged, View: v}
}

func shown(s *screen, width, height int) string {
	s.width, s.height = width, height
	return strings.Join(s.render(start.Add(10*time.Second)), "\n")
}

func typed(s *screen, keys ...string) (last *order) {
	for _, k := range keys {
		last, _ = s.key(k)
	}
	return last
}

func loaded(updates ...store.Update) *screen {
	s := newScreen(false)
	for _, u := range append(updates, store.Update{Kind: store.Synced}) {
		s.update(u, start)
	}
	return s
}

// The screen shows groups, leaders, terms and candidates, then each change, and no more than fits:
// in every window, no line is wider than it and there are no more lines than it has.
func TestScreen(t *testing.T) {
	s := loaded(store.Update{Kind: store.SessionBegan, Session: store.Session{ID: "s", Scope: store.Scope{"b*"}}}, led("billing", "node-1", 7), led("orders", "", 3))
	s.update(led("orders", "node-2", 4), start)
	text := shown(s, 120, 20)
	for _, want := range []string{"2 groups, 0 without a leader, 1 sessions", "node-1", " 7 ", "10s", "node-2 leads orders (term 4)"} {
		if !strings.Contains(text, want) {
			t.Errorf("the screen does not show %q:\n%s", want, text)
		}
	}
	for i := range 200 {
		s.update(led(fmt.Sprintf("group-with-a-name-%d", i), "a-node-with-a-very-long-name-indeed", 1), start)
	}
	for _, size := range [][2]int{{1, 1}, {10, 3}, {40, 10}, {80, 24}, {300, 100}} {
		for _, help := range []bool{false, true} {
			s.help = help
			lines := strings.Split(shown(s, size[0], size[1]), "\n")
			if len(lines) > max(size[1], 2) {
				t.Errorf("%v: %d lines", size, len(lines))
			}
			for _, l := range lines {
				l = strings.NewReplacer(styleRow, "", styleReset, "").Replace(l)
				if utf8.RuneCountInString(l) > size[0] {
					t.Errorf("%v: wider than the screen: %q", size, l)
				}
			}
		}
	}
}

// While the store cannot be reached, no last known leader looks like a current one, and no order
// is given. After a new snapshot, a group that it does not have is gone.
func TestScreenDisconnected(t *testing.T) {
	s := loaded(led("billing", "node-1", 7), led("removed", "node-1", 1))
	s.unreachable(errors.New("refused"), start)
	text := shown(s, 120, 20)
	if !strings.Contains(text, "disconnected for 10s") || strings.Count(text, "node-1") != strings.Count(text, "? node-1") {
		t.Errorf("a stale leader is shown as current:\n%s", text)
	}
	if typed(s, "d", "y") != nil || !strings.Contains(shown(s, 120, 20), "not known") {
		t.Error("a leader that is not known was asked")
	}
	s.restart()
	if text := shown(s, 120, 20); !strings.Contains(text, "? node-1") {
		t.Errorf("before the snapshot is complete, a stale leader is shown as current:\n%s", text)
	}
	s.update(led("billing", "node-2", 8), start)
	s.update(store.Update{Kind: store.Synced}, start)
	if text := shown(s, 120, 20); strings.Contains(text, "disconnected") || !strings.Contains(text, " node-2 ") || strings.Contains(text, "removed") || !strings.Contains(text, "node-2 leads billing") {
		t.Errorf("after the new snapshot:\n%s", text)
	}
}

// An order is for the term that was on the screen when its key was pressed, and is given after y
// alone, also if another node leads meanwhile: the leader of the newer term does not obey it.
func TestScreenOrders(t *testing.T) {
	s := loaded(led("billing", "node-1", 7), led("empty", "", 1))
	typed(s, "d")
	s.update(led("billing", "node-2", 8), start)
	if do := typed(s, "y"); do == nil || do.view.Token != 7 || do.verb != store.StepDown {
		t.Errorf("step down: %+v", do)
	}
	for _, keys := range [][]string{{"d", "n"}, {"d", keyEscape}, {"d", keyEnter}, {"t", keyEnter}, {"t", "x", keyEscape}, {"t", "x", keyEnter, "n"}, {keyDown, "d", "y"}} {
		if do := typed(s, keys...); do != nil || s.typing != nil {
			t.Errorf("%q: %+v", keys, do)
		}
	}
	s.selected = ""
	if do := typed(s, "t", "n", "x", keyErase, "-", "3", keyEnter, "y"); do == nil || do.to != "n-3" || do.verb != store.Transfer || do.view.Token != 8 {
		t.Errorf("transfer: %+v", do)
	}
	if _, quit := s.key("q"); !quit {
		t.Error("q does not quit")
	}
	if _, quit := (&screen{typing: &prompt{}}).key("\x03"); !quit {
		t.Error("Ctrl-C does not quit a prompt")
	}
}

// Keys sort, filter and select; the selected group stays in view and selected when others come.
func TestScreenSelect(t *testing.T) {
	var all []store.Update
	for i := range 50 {
		all = append(all, led(fmt.Sprintf("group-%02d", i), "node-1", 1))
	}
	s := loaded(all...)
	shown(s, 80, 20)
	typed(s, keyEnd)
	if text := shown(s, 80, 20); !strings.Contains(text, styleRow+"group-49") || strings.Contains(text, "group-00") {
		t.Errorf("End:\n%s", text)
	}
	s.update(led("zz", "node-1", 1), start)
	if text := shown(s, 80, 20); !strings.Contains(text, styleRow+"group-49") {
		t.Errorf("the selection moved:\n%s", text)
	}
	typed(s, "/", "1", "2", keyEnter)
	if got := s.names(); !slices.Equal(got, []string{"group-12"}) {
		t.Errorf("filter: %v", got)
	}
	typed(s, keyEscape)
	s.update(led("group-30", "", 2), start)
	for range topOrders {
		typed(s, "s")
		if first := s.names()[0]; topOrders[s.sort].name == "vacant first" && first != "group-30" {
			t.Errorf("vacant first: %s", first)
		}
	}
}

// Texts of others cannot control the terminal.
func TestScreenHostile(t *testing.T) {
	s := loaded(led("billing", "node-1\x1b[2J\r\n\u202e", 7))
	s.unreachable(errors.New("bad\x1b]0;title\x07"), start)
	s.note = "\x1b[31m\u009b"
	text := strings.NewReplacer(styleRow, "", styleReset, "").Replace(shown(s, 120, 20))
	if strings.ContainsAny(text, "\x1b\x07\r\u202e\u009b") {
		t.Errorf("%q", text)
	}
}

// What a terminal sends is split into keys.
func TestKeys(t *testing.T) {
	for text, want := range map[string][]string{
		"jk":             {"j", "k"},
		"\x1b[A\x1bOBq":  {keyUp, keyDown, "q"},
		"\x1b[5~\x1b[6~": {keyPageUp, keyPageDown},
		"\x1b":           {keyEscape},
		"é\r":            {"é", keyEnter},
	} {
		if got := splitKeys(text); !slices.Equal(got, want) {
			t.Errorf("%q: %q", text, got)
		}
	}
}
