package lease

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/tenurehq/tenure/store"
)

// Each preset is complete and breaks no rule, and differs from the others in
// the direction that its name says.
func TestPresets(t *testing.T) {
	for name, preset := range map[string]Timing{"Default": Default(), "LAN": LAN(), "WAN": WAN(), "Cautious": Cautious()} {
		if err := preset.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if preset != preset.Resolve() {
			t.Errorf("%s is not complete: %+v", name, preset)
		}
	}
	if Default() != (Timing{}).Resolve() {
		t.Errorf("Default is %+v, a zero Timing resolves to %+v", Default(), Timing{}.Resolve())
	}
	if !(LAN().TTL < Default().TTL && Default().TTL < WAN().TTL && WAN().TTL < Cautious().TTL) {
		t.Error("the presets do not go from fast to patient")
	}
}

// Resolve fills what is zero as the comments of the fields say, and nothing else.
func TestResolve(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		name     string
		in, want Timing
	}{
		{"zero", Timing{},
			Timing{TTL: 8000 * ms, Beat: 2000 * ms, Misses: 3, Drift: 0.02, Margin: 200 * ms, CallTimeout: 2000 * ms, Step: 20 * ms, BackoffMin: 50 * ms, BackoffMax: 2000 * ms}},
		{"long TTL", Timing{TTL: 40000 * ms},
			Timing{TTL: 40000 * ms, Beat: 10000 * ms, Misses: 3, Drift: 0.02, Margin: 1000 * ms, CallTimeout: 10000 * ms, Step: 100 * ms, BackoffMin: 50 * ms, BackoffMax: 10000 * ms}},
		{"short TTL", Timing{TTL: 160 * ms},
			Timing{TTL: 160 * ms, Beat: 40 * ms, Misses: 3, Drift: 0.02, Margin: 50 * ms, CallTimeout: 40 * ms, Step: 20 * ms, BackoffMin: 40 * ms, BackoffMax: 40 * ms}},
		{"backoff follows the beat", Timing{Beat: 30 * ms},
			Timing{TTL: 8000 * ms, Beat: 30 * ms, Misses: 3, Drift: 0.02, Margin: 200 * ms, CallTimeout: 2000 * ms, Step: 20 * ms, BackoffMin: 30 * ms, BackoffMax: 30 * ms}},
		{"nothing is overruled", Timing{TTL: -1, Beat: -2, Misses: -3, Drift: -4, Margin: -5, CallTimeout: -6, Step: -7, BackoffMin: -8, BackoffMax: -9, Grace: -10},
			Timing{TTL: -1, Beat: -2, Misses: -3, Drift: -4, Margin: -5, CallTimeout: -6, Step: -7, BackoffMin: -8, BackoffMax: -9, Grace: -10}},
	} {
		if got := tt.in.Resolve(); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// Every TTL in range from 220 ms up is complete with nothing but itself.
func TestTTLAlone(t *testing.T) {
	for ttl := 220 * time.Millisecond; ttl <= maxTTL; ttl += ttl / 7 {
		if err := (Timing{TTL: ttl}).Resolve().Validate(); err != nil {
			t.Fatalf("TTL %v: %v", ttl, err)
		}
	}
}

// Each broken rule is refused by a message that names it, with the numbers; one
// broken rule gives one message.
func TestValidate(t *testing.T) {
	const trust = "the trust of one keep-alive, TTL·(1−drift) − margin"
	for _, tt := range []struct {
		name   string
		change func(*Timing)
		want   string
	}{
		{"default", func(*Timing) {}, ""},
		{"the simulator's", func(t *Timing) { t.Drift, t.Margin = 0, 0 }, ""},

		{"TTL short", func(t *Timing) { *t = Timing{TTL: minTTL - 1, Margin: 1}.Resolve() }, "TTL = 19.999999ms must be from 20ms to 24h0m0s"},
		{"TTL shortest", func(t *Timing) { *t = Timing{TTL: minTTL, Margin: 1}.Resolve() }, ""},
		{"TTL long", func(t *Timing) { *t = Timing{TTL: maxTTL + 1}.Resolve() }, "TTL = 24h0m0.000000001s must be from 20ms to 24h0m0s"},
		{"TTL longest", func(t *Timing) { *t = Timing{TTL: maxTTL}.Resolve() }, ""},

		{"beat short", func(t *Timing) { t.Beat = time.Millisecond - 1 }, "Beat = 999.999µs must be at least 1ms"},
		{"beat shortest", func(t *Timing) { t.Beat = time.Millisecond }, ""},
		{"beat negative", func(t *Timing) { t.Beat = -time.Second }, "Beat = -1s must be at least 1ms"},

		{"no misses", func(t *Timing) { t.Misses = 0 }, "Misses = 0 must be at least 1"},
		{"misses", func(t *Timing) { t.Misses = 4 },
			"Misses × Beat = 4 × 2s = 8s must be less than " + trust + " − grace = 7.64s: shorten the beat or lengthen the TTL"},
		{"misses with grace", func(t *Timing) { t.Grace = 1640 * time.Millisecond },
			"Misses × Beat = 3 × 2s = 6s must be less than " + trust + " − grace = 6s: shorten the beat or lengthen the TTL"},
		{"misses, grace just less", func(t *Timing) { t.Grace = 1640*time.Millisecond - 1 }, ""},
		{"misses without end", func(t *Timing) { t.Misses = math.MaxInt },
			"Misses × Beat = 9223372036854775807 × 2s = 2562047h47m16.854775807s must be less than " + trust + " − grace = 7.64s: shorten the beat or lengthen the TTL"},

		{"drift negative", func(t *Timing) { t.Drift = -0.01 }, "Drift = -0.01 must be from 0 to below 0.5: it is a fraction, 0.02 is 2 %"},
		{"drift in per cent", func(t *Timing) { t.Drift = 2 }, "Drift = 2 must be from 0 to below 0.5: it is a fraction, 0.02 is 2 %"},
		{"drift half", func(t *Timing) { t.Drift = 0.5 }, "Drift = 0.5 must be from 0 to below 0.5: it is a fraction, 0.02 is 2 %"},
		{"drift no number", func(t *Timing) { t.Drift = math.NaN() }, "Drift = NaN must be from 0 to below 0.5: it is a fraction, 0.02 is 2 %"},
		{"drift infinite", func(t *Timing) { t.Drift = math.Inf(1) }, "Drift = +Inf must be from 0 to below 0.5: it is a fraction, 0.02 is 2 %"},

		{"margin negative", func(t *Timing) { t.Margin = -1 }, "Margin = -1ns must not be negative"},
		{"margin half", func(t *Timing) { t.Margin = 4 * time.Second },
			"Margin = 4s must be less than half of TTL = 8s: set Margin by hand for a TTL this short, or lengthen it"},
		{"margin of a short TTL", func(t *Timing) { *t = Timing{TTL: 100 * time.Millisecond}.Resolve() },
			"Margin = 50ms must be less than half of TTL = 100ms: set Margin by hand for a TTL this short, or lengthen it"},

		{"no call timeout", func(t *Timing) { t.CallTimeout = 0 }, "CallTimeout = 0s must be positive"},
		{"call timeout", func(t *Timing) { t.CallTimeout = 5640 * time.Millisecond },
			"Beat + CallTimeout = 2s + 5.64s = 7.64s must be less than " + trust + " − grace = 7.64s: a call that hangs would end the term"},
		{"call timeout just less", func(t *Timing) { t.CallTimeout = 5640*time.Millisecond - 1 }, ""},
		{"call timeout without end", func(t *Timing) { t.CallTimeout = math.MaxInt64 },
			"Beat + CallTimeout = 2s + 2562047h47m16.854775807s = 2562047h47m16.854775807s must be less than " + trust + " − grace = 7.64s: a call that hangs would end the term"},

		{"no step", func(t *Timing) { t.Step = 0 }, "Step = 0s must be positive"},
		{"step long", func(t *Timing) { t.Step = 8*time.Second + 1 }, "Step = 8.000000001s must not be above TTL = 8s"},
		{"step longest", func(t *Timing) { t.Step = 8 * time.Second }, ""},

		{"no backoff", func(t *Timing) { t.BackoffMin = 0 }, "BackoffMin = 0s must be positive"},
		{"backoff falls", func(t *Timing) { t.BackoffMin = 3 * time.Second }, "BackoffMin = 3s must not be above BackoffMax = 2s"},
		{"backoff long", func(t *Timing) { t.BackoffMax = 9 * time.Second }, "BackoffMax = 9s must not be above TTL = 8s"},

		{"grace negative", func(t *Timing) { t.Grace = -1 }, "Grace = -1ns must not be negative"},
		{"grace eats trust", func(t *Timing) { t.Grace = 7640 * time.Millisecond },
			"Grace = 7.64s must be less than " + trust + " = 7.64s: lengthen the TTL"},

		{"several", func(t *Timing) { t.Misses, t.Step, t.Grace = 0, -1, -2 },
			"Misses = 0 must be at least 1\ntiming: Step = -1ns must be positive\ntiming: Grace = -2ns must not be negative"},
		{"two relations", func(t *Timing) { t.Misses, t.CallTimeout = 4, 6*time.Second },
			"Misses × Beat = 4 × 2s = 8s must be less than " + trust + " − grace = 7.64s: shorten the beat or lengthen the TTL\n" +
				"timing: Beat + CallTimeout = 2s + 6s = 8s must be less than " + trust + " − grace = 7.64s: a call that hangs would end the term"},
	} {
		timing := Default()
		tt.change(&timing)
		err := timing.Validate()
		if tt.want == "" {
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
			}
			continue
		}
		if err == nil || err.Error() != "timing: "+tt.want {
			t.Errorf("%s:\n got %v\nwant timing: %s", tt.name, err, tt.want)
			continue
		}
		var arg *store.ArgumentError
		if !errors.As(err, &arg) || arg.Field != "timing" || !errors.Is(err, store.ErrInvalid) || !store.Definite(err) {
			t.Errorf("%s: %#v is not a definite ArgumentError about timing", tt.name, err)
		}
	}
}

// A Timing of extremes is refused, and never overflows into something that
// passes.
func TestValidateExtremes(t *testing.T) {
	most := time.Duration(math.MaxInt64)
	for _, ttl := range []time.Duration{-most, -1, 0, minTTL, time.Second, maxTTL, most} {
		for _, other := range []time.Duration{-most, most} {
			timing := Timing{
				TTL: ttl, Beat: other, Misses: math.MaxInt, Drift: 0.01, Margin: 0,
				CallTimeout: other, Step: other, BackoffMin: other, BackoffMax: other, Grace: other,
			}
			err := timing.Validate()
			if err == nil {
				t.Errorf("accepted: %+v", timing)
			} else if n := strings.Count(err.Error(), "\n"); n > 10 {
				t.Errorf("%d lines for one Timing: %v", n, err)
			}
		}
	}
}
