package raft

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure"
)

// The presets keep their own rules.
func TestPresets(t *testing.T) {
	for name, p := range map[string]Timing{"Default": Default(), "LAN": LAN(), "WAN": WAN(), "zero": Timing{}.Resolve()} {
		if err := p.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if p.LeaderLease > p.window() && name != "zero" {
			t.Errorf("%s: Raft's lease of %v is longer than trust, %v", name, p.LeaderLease, p.window())
		}
	}
}

// Each rule of a timing can be broken, and is named with its numbers.
func TestTimingValidate(t *testing.T) {
	for want, spoil := range map[string]func(*Timing){
		"Heartbeat = 1ms":          func(t *Timing) { t.Heartbeat = time.Millisecond },
		"Heartbeat = 2m0s":         func(t *Timing) { t.Heartbeat = 2 * time.Minute },
		"Drift = 0.5":              func(t *Timing) { t.Drift = 0.5 },
		"Margin = -1ns":            func(t *Timing) { t.Margin = -1 },
		"Margin = 600ms":           func(t *Timing) { t.Margin = 600 * time.Millisecond },
		"Beat = -1ns":              func(t *Timing) { t.Beat = -1 },
		"Call = -1ns":              func(t *Timing) { t.Call = -1 },
		"Election = 999ms":         func(t *Timing) { t.Election = 999 * time.Millisecond },
		"LeaderLease = 1.001s":     func(t *Timing) { t.LeaderLease = 1001 * time.Millisecond },
		"Commit = 2s":              func(t *Timing) { t.Commit = 2 * time.Second },
		"Stall = 999ms":            func(t *Timing) { t.Stall = 999 * time.Millisecond },
		"more than two heartbeats": func(t *Timing) { t.Drift, t.Margin = 0.3, 400*time.Millisecond },
	} {
		timing := Default()
		spoil(&timing)
		if err := timing.Validate(); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}

// Each rule of a configuration can be broken, and is named.
func TestConfigValidate(t *testing.T) {
	good := Config{
		Candidate: tenure.Candidate{ID: "a"}, Group: "g", DataDir: "d",
		Peers: map[string]string{"a": "10.0.0.1:1", "b": "10.0.0.2:1", "c": "10.0.0.3:1"},
	}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	alone := good
	alone.Peers = map[string]string{"a": "10.0.0.1:1"}
	joins := good
	joins.Candidate.ID, joins.Join, joins.Advertise, joins.Listen = "x", true, "10.0.0.9:1", ":1"
	for _, c := range []Config{alone, joins} {
		if err := c.Validate(); err != nil {
			t.Error(err)
		}
	}
	for want, spoil := range map[string]func(*Config){
		`candidate id is "A"`:      func(c *Config) { c.Candidate.ID = "A" },
		`group is "-g"`:            func(c *Config) { c.Group = "-g" },
		`data directory`:           func(c *Config) { c.DataDir = "" },
		`candidate metadata`:       func(c *Config) { c.Candidate.Metadata = map[string]string{"k": strings.Repeat("v", 4096)} },
		`candidate address`:        func(c *Config) { c.Candidate.Address = strings.Repeat("v", 513) },
		`from 1 to 99, not 0`:      func(c *Config) { c.Peers = nil },
		`2 nodes need both`:        func(c *Config) { c.Peers = map[string]string{"a": "h:1", "b": "h:2"} },
		`give 3 or 5`:              func(c *Config) { c.Peers = map[string]string{"a": "h:1", "b": "h:2", "c": "h:3", "d": "h:4"} },
		`"x" is not among [a b c]`: func(c *Config) { c.Candidate.ID = "x" },
		`its peers know this node`: func(c *Config) { c.Advertise = "10.0.0.9:1" },
		`must be host:port`:        func(c *Config) { c.Peers = map[string]string{"a": "nowhere"} },
		`is also that of`:          func(c *Config) { c.Peers = map[string]string{"a": "h:1", "b": "h:1", "c": "h:2"} },
		`must be given to join`:    func(c *Config) { c.Join = true },
		`listen is "nowhere"`:      func(c *Config) { c.Listen = "nowhere" },
		`Heartbeat = 1ns`:          func(c *Config) { c.Heartbeat = 1 },
	} {
		c := good
		spoil(&c)
		if err := c.Validate(); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
}
