package etcd

import "sync"

// memo remembers what saves a round trip. Nothing is decided by it: whatever it
// answers is compared in the transaction that uses it.
type memo[K comparable, V any] struct {
	mu sync.Mutex
	m  map[K]V
}

// memoMost bounds a memo: beyond it, it begins anew.
const memoMost = 1 << 16

func (m *memo[K, V]) put(k K, v V) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.m == nil || len(m.m) >= memoMost {
		m.m = map[K]V{}
	}
	m.m[k] = v
}

func (m *memo[K, V]) get(k K) (V, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.m[k]
	return v, ok
}

// take returns what is remembered, and forgets it.
func (m *memo[K, V]) take(k K) (V, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.m[k]
	delete(m.m, k)
	return v, ok
}
