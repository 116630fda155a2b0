package shard

import (
	"hash/fnv"
	"math"
	"strconv"
	"strings"
)

// Of maps an entity to one of count shards. The same key is always on the same shard.
func Of(key string, count int) int {
	if count <= 0 {
		return 0
	}
	return int(digest(key) % uint64(count))
}

// Group is the group of a shard.
func Group(set string, index int) string { return set + "-" + strconv.Itoa(index) }

// Parse is the reverse of Group. The index is -1 if the group cannot be a shard.
func Parse(group string) (set string, index int) {
	at := strings.LastIndexByte(group, '-')
	if at < 1 {
		return "", -1
	}
	index, err := strconv.Atoi(group[at+1:])
	if err != nil || index < 0 || group[at+1:] != strconv.Itoa(index) {
		return "", -1
	}
	return group[:at], index
}

// digest is FNV-1a, mixed as in SplitMix64: FNV alone differs too little for names that differ in
// their last digit.
func digest(parts ...string) uint64 {
	h := fnv.New64a()
	for _, p := range parts {
		_, _ = h.Write([]byte(p))
		_, _ = h.Write([]byte{0})
	}
	x := h.Sum64()
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// score ranks a candidate for a group by weighted rendezvous hashing: the highest score is first. A
// candidate of weight 2 is first for twice as many groups as one of weight 1.
func score(group, candidate string, weight float64) float64 {
	u := (float64(digest(group, candidate)>>12) + 0.5) / (1 << 52) // in (0, 1): with a bit more it could round to 1
	return -weight / math.Log(u)
}
