package etcdfence

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tenurehq/tenure/fence"
)

// Fence writes to etcd under a mark. Any number of processes may use the same mark.
type Fence struct {
	kv  clientv3.KV
	key string

	mu   sync.Mutex
	last *marked // as it was read or written last; nil: unknown
}

// marked is a mark and the revision of its key, 0 if there is none.
type marked struct {
	fence.Mark
	rev int64
}

// New returns a Fence whose mark is stored under key, which must have no other use. It does not
// call the server.
func New(kv clientv3.KV, key string) (*Fence, error) {
	switch {
	case kv == nil:
		return nil, errors.New("etcdfence: the client is nil")
	case key == "":
		return nil, errors.New("etcdfence: the key of the mark is empty")
	}
	return &Fence{kv: kv, key: key}, nil
}

// Do checks the stamp and executes the operations if it is admitted, all in one transaction. The
// answer has one response for each. For conditions of your own use clientv3.OpTxn.
//
// The error is a refusal (fence.ErrRefused: nothing was written), or an error of etcd: then the
// outcome may be unknown.
func (f *Fence) Do(ctx context.Context, s fence.Stamp, ops ...clientv3.Op) (*clientv3.TxnResponse, error) {
	return f.write(ctx, s, fence.Mark.Admit, ops)
}

// Seal raises the mark to the stamp's token before the first write.
func (f *Fence) Seal(ctx context.Context, s fence.Stamp) error {
	_, err := f.write(ctx, s, fence.Mark.Admit, nil)
	return err
}

// Advance raises the mark to any token, past the slip rule. It never lowers it.
func (f *Fence) Advance(ctx context.Context, s fence.Stamp) error {
	_, err := f.write(ctx, s, fence.Mark.Advance, nil)
	return err
}

// Mark returns the mark; the zero Mark if there is none.
func (f *Fence) Mark(ctx context.Context) (fence.Mark, error) {
	m, err := f.read(ctx)
	return m.Mark, f.wrap(err)
}

func (f *Fence) write(ctx context.Context, s fence.Stamp, rule func(fence.Mark, fence.Stamp) (fence.Mark, error), ops []clientv3.Op) (*clientv3.TxnResponse, error) {
	if err := errors.Join(s.Validate(), f.checkOps(ops)); err != nil {
		return nil, f.wrap(err)
	}
	m, known := f.recall()
	for {
		var err error
		if !known {
			if m, err = f.read(ctx); err != nil {
				return nil, f.wrap(err)
			}
		}
		next, err := rule(m.Mark, s)
		if err != nil && known {
			known = false // others may have changed the mark since: look again
			continue
		}
		if err != nil {
			return nil, f.wrap(err)
		}
		answer, err := f.commit(ctx, m, next, ops)
		if err != nil {
			f.keep(nil)
			return nil, f.wrap(err)
		}
		if answer.Succeeded {
			answer.Responses = answer.Responses[:len(ops)]
			return answer, nil
		}
		known = false
	}
}

// commit executes the operations if the mark is still m, and stores the next one.
func (f *Fence) commit(ctx context.Context, m marked, next fence.Mark, ops []clientv3.Op) (*clientv3.TxnResponse, error) {
	if next != m.Mark {
		text, err := json.Marshal(next)
		if err != nil {
			return nil, err
		}
		ops = append(ops[:len(ops):len(ops)], clientv3.OpPut(f.key, string(text)))
	}
	answer, err := f.kv.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(f.key), "=", m.rev)).Then(ops...).Commit()
	if err == nil && answer.Succeeded {
		if next != m.Mark {
			m = marked{next, answer.Header.Revision}
		}
		f.keep(&m)
	}
	return answer, err
}

func (f *Fence) read(ctx context.Context) (m marked, err error) {
	found, err := f.kv.Get(ctx, f.key)
	if err != nil || len(found.Kvs) == 0 {
		return m, err
	}
	m.rev = found.Kvs[0].ModRevision
	if err := json.Unmarshal(found.Kvs[0].Value, &m.Mark); err != nil || !m.Token.Valid() {
		return m, fmt.Errorf("the mark cannot be read, so nothing is written: is the key used for something else? %w", err)
	}
	return m, nil
}

func (f *Fence) recall() (m marked, known bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last == nil {
		return m, false
	}
	return *f.last, true
}

func (f *Fence) keep(m *marked) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// An answer that comes late does not replace a newer mark.
	if m == nil || f.last == nil || m.rev >= f.last.rev {
		f.last = m
	}
}

// checkOps refuses operations that change the mark.
func (f *Fence) checkOps(ops []clientv3.Op) error {
	for _, op := range ops {
		if op.IsTxn() {
			_, then, otherwise := op.Txn()
			if err := errors.Join(f.checkOps(then), f.checkOps(otherwise)); err != nil {
				return err
			}
			continue
		}
		first, end, key := op.KeyBytes(), op.RangeBytes(), []byte(f.key)
		inside := bytes.Equal(first, key)
		if len(end) > 0 {
			inside = bytes.Compare(first, key) <= 0 && (bytes.Equal(end, []byte{0}) || bytes.Compare(key, end) < 0)
		}
		if inside && !op.IsGet() {
			return fmt.Errorf("an operation changes the key %q, which belongs to the fence", f.key)
		}
	}
	return nil
}

func (f *Fence) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("etcdfence: mark %q: %w", f.key, err)
}
