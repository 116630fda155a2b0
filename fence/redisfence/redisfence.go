package redisfence

import (
	"context"
	"crypto/sha1" // the name that Redis gives a script
	_ "embed"     // the rule, in Lua
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tenurehq/tenure/fence"
)

// Client has the methods of go-redis that a Fence needs: a *redis.Client or
// *redis.ClusterClient. Pipelines are refused, because they have no answer yet.
type Client interface {
	Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd
	EvalSha(ctx context.Context, sha1 string, keys []string, args ...any) *redis.Cmd
}

//go:embed guard.lua
var guard string

// Script is a write in Lua. It runs in one step with the check, and only if the stamp was
// admitted.
type Script struct{ text, sha string }

// NewScript makes a guarded script. The body is written as for EVAL: its keys are KEYS[1] and
// up, its arguments ARGV[1] and up, and its answer is what it returns. An error in the Lua
// code shows with the first write, which then does nothing.
func NewScript(body string) *Script {
	// All on one line, so that line numbers in Redis' errors are those of the body.
	text := "local function write(KEYS, ARGV) " + body + "\nend\n" + guard
	sum := sha1.Sum([]byte(text))
	return &Script{text: text, sha: hex.EncodeToString(sum[:])}
}

// Fence writes to Redis under a mark. Any number of processes may use the same mark.
type Fence struct {
	client Client
	key    string
	none   *Script
	set    *Script
	del    *Script
}

// New returns a Fence whose mark is stored under key, which must have no other use. It does
// not call the server.
func New(client Client, key string) (*Fence, error) {
	switch {
	case client == nil:
		return nil, errors.New("redisfence: the client is nil")
	case key == "":
		return nil, errors.New("redisfence: the key of the mark is empty")
	}
	return &Fence{
		client: client, key: key,
		none: NewScript(""),
		set:  NewScript("if ARGV[2] == '0' then return redis.call('SET', KEYS[1], ARGV[1]) end return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])"),
		del:  NewScript("local n = 0 for _, key in ipairs(KEYS) do n = n + redis.call('DEL', key) end return n"),
	}, nil
}

// Do checks the stamp, runs the script if it is admitted, and returns what the script
// returned, as go-redis decodes it. Arguments are encoded by go-redis.
//
// The error is a refusal (fence.ErrRefused: nothing was written), or an error of Redis: if
// the script failed, what it wrote before that stays; if the answer was lost, the outcome is
// unknown.
func (f *Fence) Do(ctx context.Context, s fence.Stamp, script *Script, keys []string, args ...any) (any, error) {
	return f.write(ctx, "write", s, "", script, keys, args)
}

// DoStrict is Do by the strict rule: writes come in the order of the stamps' seqs, from 1. An
// equal stamp with an equal digest is a retry: the script does not run, and the first answer
// is returned.
//
// A script that failed counts as not made: a retry runs it again, from the start.
func (f *Fence) DoStrict(ctx context.Context, s fence.Stamp, digest string, script *Script, keys []string, args ...any) (any, error) {
	return f.write(ctx, "strict", s, digest, script, keys, args)
}

// Set sets a key under the stamp; with a ttl of 0 it does not expire.
func (f *Fence) Set(ctx context.Context, s fence.Stamp, key string, value any, ttl time.Duration) error {
	if ttl < 0 {
		return f.wrap(fmt.Errorf("ttl %v: must not be negative", ttl))
	}
	ms := int64((ttl + time.Millisecond - 1) / time.Millisecond)
	_, err := f.Do(ctx, s, f.set, []string{key}, value, ms)
	return err
}

// Del deletes keys under the stamp and returns how many there were.
func (f *Fence) Del(ctx context.Context, s fence.Stamp, keys ...string) (int64, error) {
	n, err := f.Do(ctx, s, f.del, keys)
	count, _ := n.(int64)
	return count, err
}

// Seal raises the mark to the stamp's token before the first write.
func (f *Fence) Seal(ctx context.Context, s fence.Stamp) error {
	_, err := f.write(ctx, "seal", s, "", f.none, nil, nil)
	return err
}

// Advance raises the mark to any token, past the slip rule. It never lowers it.
func (f *Fence) Advance(ctx context.Context, s fence.Stamp) error {
	_, err := f.write(ctx, "advance", s, "", f.none, nil, nil)
	return err
}

// Mark returns the mark; the zero Mark if there is none. It may be out of date when the
// caller reads it.
func (f *Fence) Mark(ctx context.Context) (fence.Mark, error) {
	const read = `if redis.call('EXISTS', KEYS[1]) == 0 then return {} end
local mark = redis.call('HMGET', KEYS[1], 'deployment', 'group', 'token', 'seq', 'digest', 'session')
mark[6] = mark[6] or ''
return mark`
	reply, err := f.client.Eval(ctx, read, []string{f.key}).Slice()
	if err != nil {
		return fence.Mark{}, f.wrap(err)
	}
	if len(reply) == 0 {
		return fence.Mark{}, nil
	}
	m, ok := markOf(reply)
	if !ok || !m.Token.Valid() {
		return fence.Mark{}, f.wrap(errDamaged)
	}
	return m, nil
}

// Not a refusal: the stamp is not at fault.
var errDamaged = errors.New("the mark cannot be read, so nothing is written: is the key used for something else?")

func (f *Fence) write(ctx context.Context, op string, s fence.Stamp, digest string, script *Script, keys []string, args []any) (any, error) {
	if err := s.Validate(); err != nil {
		return nil, f.wrap(err)
	}
	if script == nil {
		return nil, f.wrap(errors.New("the script is nil"))
	}
	if err := f.checkKeys(keys); err != nil {
		return nil, f.wrap(err)
	}
	all := append([]string{f.key}, keys...)
	given := append([]any{op, s.Deployment, s.Group, s.Token.String(), strconv.FormatUint(s.Seq, 10), digest, s.Session}, args...)
	reply, err := f.run(ctx, script, all, given)
	if err != nil {
		return nil, f.wrap(err)
	}
	answer, err := judged(reply, s, digest)
	if err != nil {
		return nil, f.wrap(err)
	}
	return answer, nil
}

func (f *Fence) run(ctx context.Context, script *Script, keys []string, args []any) ([]any, error) {
	cmd := f.client.EvalSha(ctx, script.sha, keys, args...)
	if errors.Is(cmd.Err(), redis.ErrNoScript) || redis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
		cmd = f.client.Eval(ctx, script.text, keys, args...)
	}
	if err := cmd.Err(); err != nil {
		return nil, err
	}
	reply, ok := cmd.Val().([]any)
	if !ok || len(reply) == 0 {
		return nil, fmt.Errorf("no answer to the script (%T): a pipeline is not a client here", cmd.Val())
	}
	return reply, nil
}

// judged converts the reply of the script into its answer or a refusal.
func judged(reply []any, s fence.Stamp, digest string) (any, error) {
	word, _ := reply[0].(string)
	switch word {
	case "apply", "retry":
		if len(reply) < 2 {
			return nil, nil // the script returned nothing
		}
		return reply[1], nil
	case "damaged":
		return nil, errDamaged
	case "seq":
		return nil, &fence.InvalidError{Field: "seq", Value: "0", Rule: "strict writes count from 1"}
	}
	m, ok := markOf(reply[1:])
	if ok {
		switch word {
		case "stale":
			return nil, &fence.StaleError{Stamp: s, Mark: m}
		case "slip":
			return nil, &fence.SlipError{Stamp: s, Mark: m}
		case "foreign":
			return nil, &fence.ForeignError{Stamp: s, Mark: m}
		case "clone":
			return nil, &fence.CloneError{Stamp: s, Digest: digest, Mark: m}
		}
	}
	return nil, fmt.Errorf("the script answers %.200q", fmt.Sprint(reply...))
}

// markOf decodes deployment, group, token, seq, digest and session.
func markOf(reply []any) (m fence.Mark, ok bool) {
	var text [6]string
	if len(reply) != len(text) {
		return m, false
	}
	for i, v := range reply {
		if text[i], ok = v.(string); !ok {
			return m, false
		}
	}
	token, err := fence.ParseToken(text[2])
	if err != nil {
		return m, false
	}
	seq, err := strconv.ParseUint(text[3], 10, 64)
	if err != nil || seq > fence.MaxSeq {
		return m, false
	}
	return fence.Mark{Deployment: text[0], Group: text[1], Token: token, Seq: seq, Digest: text[4], Session: text[5]}, true
}

// checkKeys refuses keys that a Redis cluster would refuse, on every kind of server.
func (f *Fence) checkKeys(keys []string) error {
	tag := hashTag(f.key)
	for _, key := range keys {
		if tag != "" && hashTag(key) != tag {
			return fmt.Errorf("key %q: must have the hash tag {%s} of the mark, so that both are in one slot of a cluster", key, tag)
		}
	}
	if slices.Contains(keys, f.key) {
		return fmt.Errorf("key %q: it belongs to the fence", f.key)
	}
	return nil
}

// hashTag returns the part of a key that Redis Cluster hashes, if it is not the whole key.
func hashTag(key string) string {
	_, rest, found := strings.Cut(key, "{")
	tag, _, closed := strings.Cut(rest, "}")
	if !found || !closed {
		return ""
	}
	return tag
}

func (f *Fence) wrap(err error) error { return fmt.Errorf("redisfence: mark %q: %w", f.key, err) }
