package shard

import "github.com/tenurehq/tenure/internal/placement"

// Of maps an entity to one of count shards. The same key is always on the same shard.
func Of(key string, count int) int {
	if count <= 0 {
		return 0
	}
	return int(placement.Digest(key) % uint64(count))
}

// Group is the group of a shard.
func Group(set string, index int) string { return placement.Group(set, index) }

// Parse is the reverse of Group. The index is -1 if the group cannot be a shard.
func Parse(group string) (set string, index int) { return placement.Parse(group) }
