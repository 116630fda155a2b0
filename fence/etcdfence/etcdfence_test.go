package etcdfence_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/etcdfence"
	"github.com/tenurehq/tenure/fence/fencetest"
	"github.com/tenurehq/tenure/internal/enginetest"
)

var _ fence.Sealer = (*etcdfence.Fence)(nil)

// contract starts an etcd on first use. A child process never uses it.
type contract struct {
	t    testing.TB
	once sync.Once
	e    *enginetest.Engine
}

func (k *contract) member() *enginetest.Member {
	k.once.Do(func() { k.e = enginetest.Cluster(k.t, 1, enginetest.FastTicks()) })
	return k.e.Members[0]
}

type write func(ctx context.Context, s fence.Stamp, payload string) error

// pausing calls Between before a transaction is sent: after the check, before the effect.
type pausing struct{ clientv3.KV }

func (p pausing) Txn(ctx context.Context) clientv3.Txn { return pausingTxn{p.KV.Txn(ctx), ctx} }

type pausingTxn struct {
	clientv3.Txn
	ctx context.Context //nolint:containedctx // that of the transaction
}

func (t pausingTxn) If(c ...clientv3.Cmp) clientv3.Txn  { t.Txn = t.Txn.If(c...); return t }
func (t pausingTxn) Then(o ...clientv3.Op) clientv3.Txn { t.Txn = t.Txn.Then(o...); return t }
func (t pausingTxn) Commit() (*clientv3.TxnResponse, error) {
	fencetest.Between(t.ctx)
	return t.Txn.Commit()
}

// uncompared is a client that drops the comparison with the mark.
type uncompared struct{ clientv3.KV }

func (u uncompared) Txn(ctx context.Context) clientv3.Txn { return uncomparedTxn{u.KV.Txn(ctx)} }

type uncomparedTxn struct{ clientv3.Txn }

func (t uncomparedTxn) If(...clientv3.Cmp) clientv3.Txn { return t }

func (k *contract) sink(name string, kv func(clientv3.KV) clientv3.KV, mistake func(*etcdfence.Fence, clientv3.KV, func(string) clientv3.Op) write) fencetest.Sink {
	sink := fencetest.Sink{
		Name:     "etcd" + name,
		Patience: 2 * time.Minute,
		Create: func(testing.TB) string {
			return k.member().Endpoint() + "\n/" + strconv.FormatUint(rand.Uint64(), 36) + "/"
		},
		Restart: func(testing.TB) { k.member().Kill(); k.member().Restart() },
	}
	sink.Open = func(where string) (fencetest.Resource, error) {
		endpoint, prefix, _ := strings.Cut(where, "\n")
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop(), DialTimeout: 20 * time.Second})
		if err != nil {
			return fencetest.Resource{}, err
		}
		used := kv(client.KV)
		if mistake == nil { // a mistake pauses itself
			used = pausing{used}
		}
		f, err := etcdfence.New(used, prefix+"mark")
		if err != nil {
			return fencetest.Resource{}, err
		}
		effect := func(payload string) clientv3.Op {
			return clientv3.OpPut(prefix+"effects/"+strconv.FormatUint(rand.Uint64(), 36), payload)
		}
		r := fencetest.Resource{
			Write: func(ctx context.Context, s fence.Stamp, payload string) error {
				_, err := f.Do(ctx, s, effect(payload))
				return err
			},
			Effects: func(ctx context.Context) (all []string, err error) {
				found, err := client.Get(ctx, prefix+"effects/", clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend))
				if err != nil {
					return nil, err
				}
				for _, kv := range found.Kvs {
					all = append(all, string(kv.Value))
				}
				return all, nil
			},
			Mark: f.Mark, Seal: f.Seal, Advance: f.Advance, Close: client.Close,
		}
		if mistake != nil {
			r.Write = mistake(f, client.KV, effect)
		}
		return r, nil
	}
	return sink
}

func same(kv clientv3.KV) clientv3.KV { return kv }

func (k *contract) good() fencetest.Sink { return k.sink("", same, nil) }

// twins have typical mistakes.
func (k *contract) twins() map[fencetest.Promise]fencetest.Sink {
	return map[fencetest.Promise]fencetest.Sink{
		fencetest.NotOvertaken: k.sink(", check apart", same, func(f *etcdfence.Fence, kv clientv3.KV, effect func(string) clientv3.Op) write {
			return func(ctx context.Context, s fence.Stamp, payload string) error {
				if err := f.Seal(ctx, s); err != nil {
					return err
				}
				fencetest.Between(ctx)
				_, err := kv.Do(ctx, effect(payload))
				return err
			}
		}),
		fencetest.SealWaits: k.sink(", no comparison", func(kv clientv3.KV) clientv3.KV { return uncompared{kv} }, nil),
		fencetest.MarkSurvives: k.sink(", mark in memory", same, func(_ *etcdfence.Fence, kv clientv3.KV, effect func(string) clientv3.Op) write {
			var mu sync.Mutex
			var mark fence.Mark
			return func(ctx context.Context, s fence.Stamp, payload string) (err error) {
				mu.Lock()
				defer mu.Unlock()
				if mark, err = mark.Admit(s); err == nil {
					_, err = kv.Do(ctx, effect(payload))
				}
				return err
			}
		}),
		fencetest.SlipRefused: k.sink(", no slip rule", same, func(f *etcdfence.Fence, _ clientv3.KV, effect func(string) clientv3.Op) write {
			return func(ctx context.Context, s fence.Stamp, payload string) error {
				if err := f.Advance(ctx, s); err != nil {
					return err
				}
				_, err := f.Do(ctx, s, effect(payload))
				return err
			}
		}),
	}
}

func TestMain(m *testing.M) {
	k := new(contract)
	all := []fencetest.Sink{k.good()}
	for _, twin := range k.twins() {
		all = append(all, twin)
	}
	fencetest.Child(all...)
	os.Exit(m.Run())
}

// A real etcd passes the tests of a sink, and every twin with a mistake is caught.
func TestSink(t *testing.T) {
	k := &contract{t: t}
	fencetest.Run(t, k.good())
	for promise, twin := range k.twins() {
		t.Run(twin.Name, func(t *testing.T) {
			twin.Patience = 10 * time.Second
			fencetest.Breaks(t, twin, promise)
		})
	}
	t.Run("answers", func(t *testing.T) { answers(t, k) })
}

// A write is one transaction with one answer for each operation, also if the mark was changed by
// another process or deleted. Operations that would change the mark are refused.
func answers(t *testing.T, k *contract) {
	ctx := t.Context()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{k.member().Endpoint()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	at := func(token fence.Token) fence.Stamp {
		return fence.Stamp{Deployment: "prod", Group: "billing", Token: token}
	}
	one, _ := etcdfence.New(client, "/a/mark")
	two, _ := etcdfence.New(client, "/a/mark")
	for _, f := range []*etcdfence.Fence{one, two, one} {
		answer, err := f.Do(ctx, at(5), clientv3.OpPut("/a/x", "1"), clientv3.OpGet("/a/", clientv3.WithPrefix()))
		if err != nil || len(answer.Responses) != 2 || answer.Responses[1].GetResponseRange().Count == 0 {
			t.Fatalf("%+v, %v", answer, err)
		}
	}
	if err := two.Seal(ctx, at(6)); err != nil {
		t.Fatal(err)
	}
	if _, err := one.Do(ctx, at(5), clientv3.OpPut("/a/x", "2")); !errors.Is(err, fence.ErrRefused) {
		t.Errorf("another process has sealed: %v", err)
	}
	for _, op := range []clientv3.Op{
		clientv3.OpPut("/a/mark", ""), clientv3.OpDelete("/a/", clientv3.WithPrefix()), clientv3.OpDelete("/", clientv3.WithFromKey()),
		clientv3.OpTxn(nil, nil, []clientv3.Op{clientv3.OpDelete("/a/mark")}),
	} {
		if _, err := one.Do(ctx, at(6), op); err == nil || errors.Is(err, fence.ErrRefused) {
			t.Errorf("an operation on the mark: %v", err)
		}
	}
	if _, err := client.Put(ctx, "/a/mark", "something else"); err != nil {
		t.Fatal(err)
	}
	if _, err := one.Do(ctx, at(6)); err == nil || errors.Is(err, fence.ErrRefused) {
		t.Errorf("a key that is no mark: %v", err)
	}
	if _, err := client.Delete(ctx, "/a/mark"); err != nil {
		t.Fatal(err)
	}
	if err := one.Seal(ctx, at(3)); err != nil {
		t.Errorf("the mark was deleted by hand: %v", err)
	}
}
