package experiment

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/tenurehq/tenure/lab"
	"github.com/tenurehq/tenure/lab/check"
)

// outcomeFile is written when a trial is over, so that a run that was stopped goes on
// with the next.
const outcomeFile = "outcome.json"

type keptOutcome struct {
	Digest  string  `json:"digest"`
	Key     string  `json:"key"`
	Outcome Outcome `json:"outcome"`
}

func keepTrial(o Outcome, key string) error {
	k := keptOutcome{Key: key, Outcome: o}
	return writeJSON(filepath.Join(o.Dir, outcomeFile), &k, &k.Digest)
}

// Recorded is what was found when the history in a folder was recorded; false: nothing is
// kept beside it.
func Recorded(history string) (check.Report, bool) {
	var o keptOutcome
	data, err := os.ReadFile(filepath.Join(filepath.Dir(history), outcomeFile))
	if err != nil || json.Unmarshal(data, &o) != nil {
		return check.Report{}, false
	}
	return o.Outcome.Report, true
}

// lockFolder keeps others from an experiment's folder: what they removed there, and the fleet
// file that they wrote, would be ours.
func lockFolder(dir string) (release func(), err error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, err
	}
	release, err = lab.Hold(dir + ".lock")
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return func() {}, nil
	case errors.Is(err, lab.ErrHeld):
		return nil, fmt.Errorf("another lab runs this experiment in %s: wait for it, or give another folder with --out: %w", dir, err)
	}
	return release, err
}

// keptTrials are those of a run that was stopped. What is of another run is removed:
// one that was finished is run anew, as a whole.
func keptTrials(dir, key string, trials []Trial, again bool) (map[string]Outcome, error) {
	kept := map[string]Outcome{}
	_, err := os.Stat(filepath.Join(dir, resultFile))
	if unfinished := errors.Is(err, fs.ErrNotExist); unfinished && !again {
		for _, t := range trials {
			var o keptOutcome
			data, err := os.ReadFile(filepath.Join(dir, t.Name, outcomeFile))
			if err == nil && json.Unmarshal(data, &o) == nil && o.Key == key && intact(data, o.Digest) {
				kept[t.Name] = o.Outcome
			}
		}
	}
	if len(kept) == 0 {
		return kept, os.RemoveAll(dir)
	}
	for _, t := range trials {
		if _, ok := kept[t.Name]; !ok {
			if err := os.RemoveAll(filepath.Join(dir, t.Name)); err != nil {
				return kept, err
			}
		}
	}
	return kept, nil
}

// writeJSON writes in one step: what is half written would be taken for a result. The
// digest, if given, is an empty field of v and is set to that of the text without it.
func writeJSON(path string, v any, digest *string) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err == nil && digest != nil {
		*digest = sumOf(data)
		data, err = json.MarshalIndent(v, "", "  ")
	}
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("the result cannot be kept: %w", err)
	}
	return os.Rename(path+".new", path)
}

// intact reports whether a text that writeJSON wrote is as it was.
func intact(data []byte, digest string) bool {
	data = bytes.TrimSuffix(data, []byte("\n"))
	return digest != "" && digest == sumOf(bytes.Replace(data, []byte(digest), nil, 1))
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Estimate is about how long an experiment takes: as long as the last time that the same
// was run, else what it says of itself, else what its trials suggest.
func Estimate(out string, size Size, e Experiment) time.Duration {
	if r, err := ReadResult(filepath.Join(out, string(size), e.Name, resultFile)); err == nil && r.Seconds > 0 && r.Command == e.command(size) {
		return time.Duration(r.Seconds * float64(time.Second))
	}
	if e.Takes != nil {
		return e.Takes(size)
	}
	var sum time.Duration
	for _, t := range e.Trials(size) {
		// A start and an end; a round waits for a failover and for the node to be back.
		sum += 6*time.Second + time.Duration(t.Rounds)*(t.TTL+time.Second)
	}
	return sum
}

// finished is the result of an earlier run, if it stands.
func (c Config) finished(dir, key string) (Result, bool) {
	if c.Again {
		return Result{}, false
	}
	r, err := ReadResult(filepath.Join(dir, resultFile))
	return r, err == nil && r.Key == key && r.Passed()
}

// Finished reports whether Run would return a result that it has.
func Finished(ctx context.Context, cfg Config, e Experiment) bool {
	key, err := keyOf(ctx, cfg, e, e.Trials(cfg.Size))
	if err != nil {
		return false
	}
	_, ok := cfg.finished(filepath.Join(cfg.Out, string(cfg.Size), e.Name), key)
	return ok
}
