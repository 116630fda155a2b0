package fencetest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/tenurehq/tenure/fence"
)

// childEnv tells a test binary that it is the child process that will be killed.
const childEnv = "TENURE_FENCETEST_CHILD"

// childTask is what a child process does until it is killed.
type childTask struct {
	Sink   string
	Where  string
	Strict bool
	Loop   bool        // writes until it is killed, with a new token each time
	From   fence.Token // the first token
	To     fence.Token // the last token of a loop that ends by itself; 0: it does not end
}

// Lines that a child prints on its standard output.
const (
	saysHeld = "fencetest held"
	saysAck  = "fencetest ack "
	saysDone = "fencetest done "
)

// Child runs as the process that will be killed, and does not return, if the suite started
// this process for that. Otherwise it returns at once. TestMain calls it with every sink
// under test, twins included.
func Child(sinks ...Sink) {
	env := os.Getenv(childEnv)
	if env == "" {
		return
	}
	var p childTask
	if err := json.Unmarshal([]byte(env), &p); err != nil {
		fmt.Println(saysDone + err.Error())
		os.Exit(1)
	}
	go func() {
		// Exit when the parent is gone.
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	i := slices.IndexFunc(sinks, func(s Sink) bool { return s.Name == p.Sink })
	if i < 0 {
		fmt.Printf("%sno sink %q is passed to fencetest.Child\n", saysDone, p.Sink)
		os.Exit(1)
	}
	fmt.Println(saysDone + said(p.run(sinks[i])))
	os.Exit(0)
}

func said(err error) string {
	if err == nil {
		return "ok"
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}

func (p childTask) run(sink Sink) error {
	r, err := sink.Open(p.Where)
	if err != nil {
		return err
	}
	ctx := context.Background()
	if p.Loop {
		for token := p.From; ; token++ {
			if err := r.Write(ctx, at(token), token.String()); err != nil {
				return err
			}
			fmt.Println(saysAck + token.String())
			if token == p.To {
				return nil
			}
		}
	}
	h := newHold()
	go func() {
		<-h.reached
		fmt.Println(saysHeld)
	}()
	if p.Strict {
		_, err := r.WriteStrict(h.in(ctx), atSeq(p.From, 1), "digest of held", "held")
		return err
	}
	return r.Write(h.in(ctx), at(p.From), "held")
}

// child runs a task in a new process, passes its lines to until, and kills it when until
// returns true. It returns when the process is gone.
func (c *check) child(p childTask, until func(line string) bool) {
	if stderr, ok := c.hasChild(p, until); !ok {
		c.Fatalf("the child process took no part: does TestMain call fencetest.Child?\n%s", stderr)
	}
}

// hasChild is child; it reports whether the child process ran.
func (c *check) hasChild(p childTask, until func(line string) bool) (said string, ok bool) {
	p.Sink, p.Where = c.sink.Name, c.where
	program, err := os.Executable()
	c.Must("executable", err)
	env, err := json.Marshal(p)
	c.Must("part", err)
	cmd := exec.CommandContext(c.ctx, program, "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+string(env))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	c.Must("child", err)
	stdout, err := cmd.StdoutPipe()
	c.Must("child", err)
	c.Must("child", cmd.Start())
	took := false
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		took = took || strings.HasPrefix(lines.Text(), "fencetest ")
		if until(lines.Text()) {
			break
		}
	}
	_ = cmd.Process.Kill()
	_, _ = io.Copy(io.Discard, stdout)
	_ = cmd.Wait()
	_ = stdin.Close()
	return stderr.String(), took
}

// killHeld kills a process between the check and the effect of a write.
func (c *check) killHeld(p childTask) {
	held, answer := false, ""
	c.child(p, func(line string) bool {
		held = held || line == saysHeld
		if rest, ok := strings.CutPrefix(line, saysDone); ok {
			answer = rest
		}
		return held || answer != ""
	})
	switch {
	case held:
	case answer == "ok":
		c.noMoment()
	default:
		c.Fatalf("the child's write: %s", answer)
	}
}

// If a process dies after the check, its write took effect completely or not at all; with
// MarkFirst, only the mark may be raised. Its locks are released, and older tokens are still
// refused.
func killBetween(c *check) {
	c.accepts(at(3), "before")
	c.killHeld(childTask{From: 4})
	effects, err := c.Effects(c.ctx)
	c.Must("effects", err)
	made := slices.Contains(effects, "held")
	if c.Mark != nil {
		m, err := c.Mark(c.ctx)
		c.Must("mark", err)
		switch {
		case made && m.Token != 4:
			c.Errorf("killed between check and write: the effect was made, and the mark is %d, below its token 4", m.Token)
		case !made && m.Token != 3 && (m.Token != 4 || !c.sink.MarkFirst):
			c.Errorf("killed between check and write: nothing was written, and the mark is %d, want 3", m.Token)
		}
	}
	if made {
		stale(c, at(3), 4)
	}
	c.accepts(at(4), "after")
	stale(c, at(3), 4)
	want := []string{"before", "after"}
	if made {
		want = []string{"before", "held", "after"}
	}
	c.effects("after the kill", want...)
}

func strictKilled(c *check) {
	c.strictly(3, 1, "before")
	c.killHeld(childTask{From: 4, Strict: true})
	first := c.strictly(4, 1, "held")
	c.effects("retried after the kill", "before", "held")
	if again := c.strictly(4, 1, "held"); again != first {
		c.Errorf("a retry after the kill was answered %q, the next %q", first, again)
	}
	c.strictly(4, 2, "after")
	c.effects("in the end", "before", "held", "after")
}

// Each write of the loop raises the mark, so mark and effects can be compared wherever the
// process was killed.
func killAnywhere(c *check) {
	next := fence.Token(1)
	for _, acks := range []int{1, 7, 20} {
		var last fence.Token
		failed := ""
		c.child(childTask{From: next, Loop: true}, func(line string) bool {
			if n, ok := strings.CutPrefix(line, saysAck); ok {
				token, err := fence.ParseToken(n)
				c.Must("ack", err)
				last = token
				acks--
			}
			failed, _ = strings.CutPrefix(line, saysDone)
			if failed == line {
				failed = ""
			}
			return acks == 0 || failed != ""
		})
		if failed != "" {
			c.Fatalf("the child's write: %s", failed)
		}
		next = c.survived(last) + 1
	}
}

// survived compares the effects with the last acknowledged write, and returns the highest
// token that was used.
func (c *check) survived(last fence.Token) fence.Token {
	// A pending write of the killed process may still arrive at a server, so the mark is read
	// before and after the effects.
	before := c.markToken()
	effects, err := c.Effects(c.ctx)
	c.Must("effects", err)
	after := c.markToken()
	made := fence.Token(0)
	for _, e := range effects {
		token, err := fence.ParseToken(e)
		c.Must("effect", err)
		if token <= made {
			c.Errorf("the effects of a writer that raises its token each time: %q", effects)
		}
		made = token
	}
	if made < last {
		c.Errorf("write %d was acknowledged before the kill and is lost: the last effect is %d", last, made)
	}
	if c.Mark != nil {
		ahead := fence.Token(0)
		if c.sink.MarkFirst {
			ahead = 1
		}
		if made > after || made+ahead < before {
			c.Errorf("after the kill the mark is %d, and the last effect %d", after, made)
		}
	}
	next := max(made, last, after) + 2 // above any pending write
	c.accepts(at(next), next.String())
	c.marked("after the kill and a write", next)
	stale(c, at(next-1), next)
	return next
}

func (c *check) markToken() fence.Token {
	if c.Mark == nil {
		return 0
	}
	m, err := c.Mark(c.ctx)
	c.Must("mark", err)
	return m.Token
}
