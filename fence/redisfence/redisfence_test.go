package redisfence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/fencetest"
	"github.com/tenurehq/tenure/fence/redisfence"
	"github.com/tenurehq/tenure/internal/servertest"
)

// A Fence is a sealer.
var _ fence.Sealer = (*redisfence.Fence)(nil)

// durable starts Redis with the only setting that keeps acknowledged writes while the machine
// runs.
func durable(t testing.TB) *servertest.Server {
	t.Helper()
	return servertest.Redis(t, servertest.Args("--appendonly", "yes", "--appendfsync", "always"))
}

func connect(t testing.TB, server *servertest.Server) *redis.Client {
	t.Helper()
	client := dial(server.Addr())
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func dial(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
}

func fenced(t testing.TB, client redisfence.Client, key string) *redisfence.Fence {
	t.Helper()
	f, err := redisfence.New(client, key)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// contract is the sink under test; server is nil in a child process.
type contract struct {
	server *servertest.Server
	made   atomic.Int64
}

func (k *contract) sink() fencetest.Sink {
	return fencetest.Sink{
		Name: "redis",
		Create: func(testing.TB) string {
			return fmt.Sprintf("%s {r%d}", k.server.Addr(), k.made.Add(1))
		},
		Open:    func(where string) (fencetest.Resource, error) { return open(where, nil) },
		Restart: func(testing.TB) { k.server.Restart() },

		NoMoment: "check and write are one script, which the server runs alone",
	}
}

const note = `return {redis.call('RPUSH', KEYS[1], ARGV[1]), 'made ' .. ARGV[1]}`

type write func(ctx context.Context, s fence.Stamp, payload string) error

// open connects. other replaces the write of a twin.
func open(where string, other func(f *redisfence.Fence, client *redis.Client, effects string) write) (fencetest.Resource, error) {
	addr, tag, _ := strings.Cut(where, " ")
	client := dial(addr)
	effects, script := tag+":effects", redisfence.NewScript(note)
	f, err := redisfence.New(client, tag+":mark")
	if err != nil {
		return fencetest.Resource{}, err
	}
	r := fencetest.Resource{
		Write: func(ctx context.Context, s fence.Stamp, payload string) error {
			_, err := f.Do(ctx, s, script, []string{effects}, payload)
			return err
		},
		Effects: func(ctx context.Context) ([]string, error) { return client.LRange(ctx, effects, 0, -1).Result() },
		Mark:    f.Mark,
		Seal:    f.Seal,
		Advance: f.Advance,
		WriteStrict: func(ctx context.Context, s fence.Stamp, digest, payload string) (string, error) {
			answer, err := f.DoStrict(ctx, s, digest, script, []string{effects}, payload)
			return fmt.Sprint(answer), err
		},
		Close: client.Close,
	}
	if other != nil {
		r.Write = other(f, client, effects)
	}
	return r, nil
}

func (k *contract) twin(name string, other func(f *redisfence.Fence, client *redis.Client, effects string) write) fencetest.Sink {
	s := k.sink()
	s.Name = name
	s.NoMoment = ""
	s.Open = func(where string) (fencetest.Resource, error) { return open(where, other) }
	return s
}

// checkApart checks the stamp, and then writes with a second command.
func (k *contract) checkApart() fencetest.Sink {
	return k.twin("check apart", func(f *redisfence.Fence, client *redis.Client, effects string) write {
		return func(ctx context.Context, s fence.Stamp, payload string) error {
			if err := f.Seal(ctx, s); err != nil {
				return err
			}
			fencetest.Between(ctx)
			return client.RPush(ctx, effects, payload).Err()
		}
	})
}

// markLast writes, and then raises the mark.
func (k *contract) markLast() fencetest.Sink {
	return k.twin("mark last", func(f *redisfence.Fence, client *redis.Client, effects string) write {
		return func(ctx context.Context, s fence.Stamp, payload string) error {
			m, err := f.Mark(ctx)
			if err != nil {
				return err
			}
			if _, err := m.Admit(s); err != nil {
				return err
			}
			if err := client.RPush(ctx, effects, payload).Err(); err != nil {
				return err
			}
			fencetest.Between(ctx)
			return f.Seal(ctx, s)
		}
	})
}

// noSlipRule raises the mark to any token.
func (k *contract) noSlipRule() fencetest.Sink {
	return k.twin("no slip rule", func(f *redisfence.Fence, client *redis.Client, effects string) write {
		return func(ctx context.Context, s fence.Stamp, payload string) error {
			if err := f.Advance(ctx, s); err != nil {
				return err
			}
			return client.RPush(ctx, effects, payload).Err()
		}
	})
}

// inMemory keeps the mark in the process.
func (k *contract) inMemory() fencetest.Sink {
	return k.twin("mark in memory", func(_ *redisfence.Fence, client *redis.Client, effects string) write {
		var mu sync.Mutex
		var mark fence.Mark
		return func(ctx context.Context, s fence.Stamp, payload string) (err error) {
			mu.Lock()
			defer mu.Unlock()
			if mark, err = mark.Admit(s); err != nil {
				return err
			}
			fencetest.Between(ctx)
			return client.RPush(ctx, effects, payload).Err()
		}
	})
}

func TestMain(m *testing.M) {
	k := new(contract)
	fencetest.Child(k.sink(), k.checkApart(), k.markLast(), k.noSlipRule(), k.inMemory())
	os.Exit(m.Run())
}

// A Redis that syncs every write passes the tests of a sink.
func TestSink(t *testing.T) { fencetest.Run(t, (&contract{server: durable(t)}).sink()) }

// The suite catches typical mistakes.
func TestTwins(t *testing.T) {
	k := &contract{server: durable(t)}
	fencetest.Breaks(t, k.checkApart(), fencetest.NotOvertaken, fencetest.KillBetween)
	fencetest.Breaks(t, k.markLast(), fencetest.NotOvertaken, fencetest.KillBetween)
	fencetest.Breaks(t, k.noSlipRule(), fencetest.SlipRefused)
	fencetest.Breaks(t, k.inMemory(), fencetest.MarkSurvives, fencetest.Atomic)
}

// A Redis with default settings loses the mark, as the package comment says.
func TestForgetful(t *testing.T) {
	k := &contract{server: servertest.Redis(t)}
	fencetest.Breaks(t, k.sink(), fencetest.MarkSurvives)
}

// The rule in Lua matches the rule in Go: same verdict, error and new mark, for edge cases
// and random ones.
func TestRule(t *testing.T) {
	client := connect(t, servertest.Redis(t))
	f := fenced(t, client, "mark")
	script := redisfence.NewScript(`return 'made'`)
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	kinds := make(map[string]int)
	for i := range 4000 {
		m := randomMark(r)
		s := fence.Stamp{Deployment: oneOf(r, "prod", "prod", "prod", "staging"), Group: oneOf(r, "billing", "billing", "billing", "mail"), Token: near(r, m.Token), Seq: oneOf(r, m.Seq, m.Seq+1, randomSeq(r), randomSeq(r))}
		digest := oneOf(r, m.Digest, "", "d", "\x00\xff")
		store(t, client, m)

		var want fence.Mark
		var wantErr, err error
		verdict := fence.Apply
		var answer any
		op := oneOf(r, "do", "strict", "strict", "strict", "seal", "advance")
		switch op {
		case "do":
			want, wantErr = m.Admit(s)
			answer, err = f.Do(t.Context(), s, script, nil)
		case "strict":
			want, verdict, wantErr = m.AdmitStrict(s, digest)
			answer, err = f.DoStrict(t.Context(), s, digest, script, nil)
		case "seal":
			want, wantErr = m.Admit(s)
			err = f.Seal(t.Context(), s)
		case "advance":
			want, wantErr = m.Advance(s)
			err = f.Advance(t.Context(), s)
		}
		got, merr := f.Mark(t.Context())
		if merr != nil || got != want || !same(unwrapped(err), wantErr) {
			t.Fatalf("seed %d, case %d: %s of %+v %q on %+v:\nLua %+v, %v\nGo  %+v, %v (%v)", seed, i, op, s, digest, m, got, err, want, wantErr, merr)
		}
		if made := (op == "do" || op == "strict") && wantErr == nil; made && (answer == "made") != (verdict == fence.Apply) {
			t.Fatalf("seed %d, case %d: %s of %+v on %+v answers %v, want verdict %d", seed, i, op, s, m, answer, verdict)
		}
		kinds[fmt.Sprintf("%s %T %d", op, wantErr, verdict)]++
	}
	for _, kind := range []string{
		"do <nil> 1", "do *fence.StaleError 1", "do *fence.SlipError 1", "do *fence.ForeignError 1", "do *fence.InvalidError 1",
		"strict <nil> 1", "strict <nil> 2", "strict *fence.CloneError 0", "strict *fence.StaleError 0", "strict *fence.SlipError 0", "strict *fence.InvalidError 0",
		"seal <nil> 1", "seal *fence.SlipError 1", "advance <nil> 1", "advance *fence.StaleError 1", "advance *fence.ForeignError 1",
	} {
		if kinds[kind] < 5 {
			t.Errorf("seed %d: %q was met %d times: the test does not test it", seed, kind, kinds[kind])
		}
	}
}

// same compares errors with all their fields.
func same(a, b any) bool { return reflect.DeepEqual(a, b) }

// unwrapped removes the name of the mark from a refusal.
func unwrapped(err error) error {
	if errors.Is(err, fence.ErrRefused) {
		return errors.Unwrap(err)
	}
	return err
}

func oneOf[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func randomSeq(r *rand.Rand) uint64 {
	return oneOf(r, 0, 1, 2, 3, 9, 10, fence.MaxSeq-1, fence.MaxSeq, fence.MaxSeq+1, r.Uint64N(fence.MaxSeq+1))
}

func randomMark(r *rand.Rand) fence.Mark {
	m := fence.Mark{Deployment: "prod", Group: "billing", Token: near(r, fence.NewToken(oneOf[uint64](r, 0, 1, 2, fence.MaxEpoch-1), oneOf(r, 1, 2*fence.MaxJump, fence.MaxCounter))), Seq: randomSeq(r), Digest: oneOf(r, "", "d", "e", "\x00\xff")}
	if !m.Token.Valid() || m.Seq > fence.MaxSeq || r.IntN(10) == 0 {
		return fence.Mark{}
	}
	return m
}

// near returns a token at an edge of the rule relative to another, or a random one.
func near(r *rand.Rand, from fence.Token) fence.Token {
	by := oneOf(r, 0, 0, 0, 0, 1, 2, fence.MaxJump-1, fence.MaxJump, fence.MaxJump+1)
	counter := int64(from.Counter()) + oneOf[int64](r, 1, 1, -1)*int64(by)
	epoch := int64(from.Epoch()) + oneOf[int64](r, 0, 0, 0, 0, 0, 1, 1, 2, -1)
	switch {
	case r.IntN(20) == 0:
		return oneOf(r, 0, 1, fence.MaxToken-1, fence.MaxToken, fence.MaxToken+1, fence.Token(1)<<63, fence.Token(r.Uint64N(1<<53)))
	case counter < 0 || epoch < 0:
		return from
	}
	return fence.NewToken(uint64(epoch), uint64(counter))
}

// store writes a mark by hand to the key of the fence.
func store(t *testing.T, client *redis.Client, m fence.Mark) {
	t.Helper()
	if err := client.Del(t.Context(), "mark").Err(); err != nil {
		t.Fatal(err)
	}
	if m.Token == 0 {
		return
	}
	if err := client.HSet(t.Context(), "mark", "deployment", m.Deployment, "group", m.Group, "token", m.Token.String(), "seq", m.Seq, "digest", m.Digest).Err(); err != nil {
		t.Fatal(err)
	}
}

func at(token fence.Token, seq uint64) fence.Stamp {
	return fence.Stamp{Deployment: "prod", Group: "billing", Token: token, Seq: seq}
}

// Set and Del have an effect if admitted, and none if refused.
func TestSetDel(t *testing.T) {
	client := connect(t, servertest.Redis(t))
	f := fenced(t, client, "mark")
	ctx := t.Context()
	if err := f.Set(ctx, at(5, 0), "a", "new", 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Set(ctx, at(5, 0), "b", 7, time.Hour); err != nil {
		t.Fatal(err)
	}
	if ttl := client.TTL(ctx, "b").Val(); ttl < time.Minute || client.TTL(ctx, "a").Val() > 0 {
		t.Errorf("ttl of b is %v, of a %v", ttl, client.TTL(ctx, "a").Val())
	}
	var stale *fence.StaleError
	if err := f.Set(ctx, at(4, 0), "a", "old", 0); !errors.As(err, &stale) || stale.Mark.Token != 5 {
		t.Errorf("stale set: %v", err)
	}
	if n, err := f.Del(ctx, at(4, 0), "a"); !errors.As(err, &stale) || n != 0 {
		t.Errorf("stale del: %d, %v", n, err)
	}
	if got := client.Get(ctx, "a").Val(); got != "new" {
		t.Errorf("a is %q", got)
	}
	if n, err := f.Del(ctx, at(5, 0), "a", "b", "none"); n != 2 || err != nil {
		t.Errorf("del: %d, %v", n, err)
	}
	if err := f.Set(ctx, at(5, 0), "a", "x", -1); err == nil {
		t.Error("a negative ttl was accepted")
	}
}

// Retries of a strict write get its first answer, whatever its type. A script that failed
// counts as not made.
func TestStrictAnswers(t *testing.T) {
	client := connect(t, servertest.Redis(t))
	f := fenced(t, client, "mark")
	ctx := t.Context()
	seq := uint64(0)
	for body, want := range map[string]any{
		``:                                    nil,
		`return false`:                        nil,
		`return true`:                         int64(1),
		`return 7`:                            int64(7),
		`return '\0\255'`:                     "\x00\xff",
		`return redis.call('PING')`:           "PONG",
		`return {}`:                           []any{},
		`return {1, {'a', {2}}, 'b'}`:         []any{int64(1), []any{"a", []any{int64(2)}}, "b"},
		`return redis.call('GET', 'none')`:    nil,
		`return {KEYS[1], ARGV[1], #ARGV} `:   []any{"k", "arg", int64(2)},
		`return 1 -- a comment at the end`:    int64(1),
		`local seen, last = 1, 2 return seen`: int64(1),
	} {
		seq++
		script := redisfence.NewScript(`redis.call('INCR', 'runs') ` + body)
		for _, name := range []string{"write", "retry", "second retry"} {
			got, err := f.DoStrict(ctx, at(5, seq), "d", script, []string{"k"}, "arg", 2)
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%s of %q: %#v, %v; want %#v", name, body, got, err, want)
			}
		}
		if runs := client.Get(ctx, "runs").Val(); runs != fmt.Sprint(seq) {
			t.Fatalf("%q: %s runs of %d scripts", body, runs, seq)
		}
	}

	for _, body := range []string{`redis.call('LPUSH', 'runs', 1)`, `return redis.error_reply('ERR not today')`, `return redis.pcall('LPUSH', 'runs', 1)`, `error('no')`, `return syntax error`} {
		seq++
		for range 2 {
			got, err := f.DoStrict(ctx, at(5, seq), "d", redisfence.NewScript(body), nil)
			if err == nil || errors.Is(err, fence.ErrRefused) || got != nil {
				t.Errorf("%q: %v, %v", body, got, err)
			}
			if _, err := f.Do(ctx, at(5, 0), redisfence.NewScript(body), nil); err == nil || errors.Is(err, fence.ErrRefused) {
				t.Errorf("not strict, %q: %v", body, err)
			}
		}
		if got, err := f.DoStrict(ctx, at(5, seq), "d", redisfence.NewScript("return 'now'"), nil); got != "now" || err != nil {
			t.Errorf("after %q failed: %v, %v", body, got, err)
		}
	}
}

// A key that holds something other than a mark is not a first contact: all writes fail, and
// not as refusals of the stamp.
func TestDamaged(t *testing.T) {
	client := connect(t, servertest.Redis(t))
	f := fenced(t, client, "mark")
	ctx := t.Context()
	whole := map[string]any{"deployment": "prod", "group": "billing", "token": "5", "seq": "0", "digest": ""}
	damage := []func() error{
		func() error { return client.Set(ctx, "mark", "5", 0).Err() },
		func() error { return client.HSet(ctx, "mark", "name", "somebody").Err() },
	}
	for field := range whole {
		damage = append(damage, func() error {
			return errors.Join(client.HSet(ctx, "mark", whole).Err(), client.HDel(ctx, "mark", field).Err())
		})
	}
	for _, token := range []string{"", "0", "-1", "1.5", "05", "1e3", "0x5", "9007199254740992", "9007199254740993", strings.Repeat("9", 1000), "nan"} {
		damage = append(damage, func() error {
			return errors.Join(client.HSet(ctx, "mark", whole).Err(), client.HSet(ctx, "mark", "token", token).Err())
		})
	}
	for i, make := range damage {
		if err := errors.Join(client.Del(ctx, "mark", "a").Err(), make()); err != nil {
			t.Fatal(err)
		}
		if err := f.Set(ctx, at(5, 0), "a", "x", 0); err == nil || errors.Is(err, fence.ErrRefused) {
			t.Errorf("damage %d: set: %v", i, err)
		}
		if m, err := f.Mark(ctx); err == nil {
			t.Errorf("damage %d: mark: %+v", i, m)
		}
		if client.Exists(ctx, "a").Val() != 0 {
			t.Errorf("damage %d: written", i)
		}
	}
}

// In a cluster all keys must be in one slot: a fence with a hash tag refuses other keys
// itself, otherwise Redis refuses them. Nothing is written.
func TestCluster(t *testing.T) {
	server := servertest.Redis(t, servertest.Args("--cluster-enabled", "yes"))
	node := connect(t, server)
	ctx := t.Context()
	if err := node.ClusterAddSlotsRange(ctx, 0, 16383).Err(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(node.ClusterInfo(ctx).Val(), "cluster_state:ok"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the cluster does not come up")
		}
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{server.Addr()}})
	t.Cleanup(func() { _ = client.Close() })

	tagged := fenced(t, client, "{r}:mark")
	if err := tagged.Set(ctx, at(5, 0), "x:{r}", "v", 0); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"r", "{s}:a", "{}{r}", "{r"} {
		if err := tagged.Set(ctx, at(5, 0), key, "v", 0); err == nil || !strings.Contains(err.Error(), "hash tag {r}") {
			t.Errorf("key %q: %v", key, err)
		}
	}
	bare := fenced(t, client, "mark")
	if err := bare.Set(ctx, at(5, 0), "elsewhere", "v", 0); err == nil || !redis.HasErrorPrefix(err, "CROSSSLOT") && !strings.Contains(err.Error(), "CROSSSLOT") {
		t.Errorf("keys in two slots: %v", err)
	}
	if m, err := bare.Mark(ctx); err != nil || m.Token != 0 {
		t.Errorf("the mark was moved: %+v, %v", m, err)
	}
}

// Misuse is refused before the server is called.
func TestMisuse(t *testing.T) {
	client := connect(t, servertest.Redis(t))
	ctx := t.Context()
	if _, err := redisfence.New(nil, "mark"); err == nil {
		t.Error("no client was accepted")
	}
	if _, err := redisfence.New(client, ""); err == nil {
		t.Error("no key was accepted")
	}
	f := fenced(t, client, "mark")
	if _, err := f.Do(ctx, at(5, 0), nil, nil); err == nil {
		t.Error("no script was accepted")
	}
	if err := f.Set(ctx, at(5, 0), "mark", "x", 0); err == nil || !strings.Contains(err.Error(), "belongs to the fence") {
		t.Errorf("a write of the mark itself: %v", err)
	}
	// A pipeline returns no error before it has sent anything.
	if err := fenced(t, client.Pipeline(), "mark").Seal(ctx, at(5, 0)); err == nil || !strings.Contains(err.Error(), "pipeline") {
		t.Errorf("a pipeline: %v", err)
	}
	if m, err := f.Mark(ctx); err != nil || m.Token != 0 {
		t.Errorf("the mark was moved: %+v, %v", m, err)
	}
}

// A server without memory refuses a strict write before it runs. Otherwise a write that frees
// memory would run without its mark being stored.
func TestNoMemory(t *testing.T) {
	client := connect(t, servertest.Redis(t))
	f := fenced(t, client, "mark")
	ctx := t.Context()
	if err := f.Set(ctx, at(5, 0), "a", "x", 0); err != nil {
		t.Fatal(err)
	}
	if err := client.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	del := redisfence.NewScript(`return redis.call('DEL', KEYS[1])`)
	if _, err := f.DoStrict(ctx, at(5, 1), "d", del, []string{"a"}); err == nil || client.Exists(ctx, "a").Val() != 1 {
		t.Errorf("strict write without memory: %v, the key is there %d times", err, client.Exists(ctx, "a").Val())
	}
	if err := client.ConfigSet(ctx, "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	if n, err := f.DoStrict(ctx, at(5, 1), "d", del, []string{"a"}); n != int64(1) || err != nil {
		t.Errorf("with memory again: %v, %v", n, err)
	}
}

// The example prints what its comment says.
func TestExample(t *testing.T) {
	t.Setenv("REDIS_ADDR", servertest.Redis(t).Addr())
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.Stdout
	os.Stdout = w
	Example()
	os.Stdout = stdout
	_ = w.Close()
	if out, err := io.ReadAll(r); err != nil || string(out) != exampleOutput {
		t.Errorf("%s, %v", out, err)
	}
}
