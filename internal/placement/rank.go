package placement

import (
	"hash/fnv"
	"math"
	"strconv"
	"strings"

	"github.com/tenurehq/tenure/store"
)

// Rules are the settings of a set as a process knows them.
type Rules struct {
	Weights  map[string]float64         // by candidate; 1 for others
	Pins     map[int]string             // candidates by shard
	Full     map[string]store.SessionID // sessions that own as many shards as they may, by candidate
	Cordoned map[string]bool            // candidates that get no shards
}

// maxScore is above every score.
const maxScore = 1e300

// Rank orders candidates for a shard: the largest number first. A pinned one is before all others.
func (r *Rules) Rank(set string, index int, candidate string) float64 {
	if r.Pins[index] == candidate {
		return maxScore
	}
	weight, ok := r.Weights[candidate]
	if !ok {
		weight = 1
	}
	return score(Group(set, index), candidate, weight)
}

// First returns the candidate of the sessions that should own a shard, or "" if there is none. A
// candidate that is full stays the owner of what it owns.
func (r *Rules) First(set string, index int, owner string, of []store.Session) string {
	best, most, group := "", 0.0, Group(set, index)
	for _, s := range of {
		id := s.Candidate.ID
		if r.Cordoned[id] || id != owner && r.Full[id] == s.ID || !s.Scope.Covers(group) {
			continue
		}
		if number := r.Rank(set, index, id); best == "" || number > most {
			best, most = id, number
		}
	}
	return best
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

// Digest is FNV-1a, mixed as in SplitMix64: FNV alone differs too little for names that differ in
// their last digit.
func Digest(parts ...string) uint64 {
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
	u := (float64(Digest(group, candidate)>>12) + 0.5) / (1 << 52) // in (0, 1): with a bit more it could round to 1
	return -weight / math.Log(u)
}
