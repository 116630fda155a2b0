package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/lab/chaos"
)

type verb struct{ name, what, flags string }

// verbs are what the program can do, in the order in which they are listed: every kind of
// fault in the table, and what is no single fault.
func verbs() (all []verb) {
	for _, k := range chaos.Kinds() {
		all = append(all, verb{k.Name, k.What, k.Options})
	}
	return append(all,
		verb{"churn", "kill one leader after the other", "every for"},
		verb{"list", "show the fleet, what faults stand, and what can be done", ""},
		verb{"heal", "undo what a chaos that was killed has left", ""})
}

type settings struct {
	verb, fleet, output string
	secs                float64
	ms, ppm             int64
	from, way, what     string
	to, at, trigger     string
	between             bool
	every, length       time.Duration
	seed                uint64
}

var errHelp = errors.New("help was asked for")

const more = "a flag may have one dash or two, and --x is CHAOS_X in the environment"

func usage(w io.Writer) {
	_, _ = fmt.Fprintf(w, "usage: chaos VERB [flags]\n\n")
	for _, v := range verbs() {
		_, _ = fmt.Fprintf(w, "  %-17s %s\n", v.name, v.what)
	}
	_, _ = fmt.Fprintf(w, "\nchaos VERB -h lists its flags; %s.\n", more)
}

func parse(args []string, env func(string) (string, bool), stderr io.Writer) (settings, error) {
	var s settings
	if len(args) == 0 {
		usage(stderr)
		return s, errors.New("which verb?")
	}
	s.verb = args[0]
	flags, known := "", false
	for _, v := range verbs() {
		if v.name == s.verb {
			flags, known = v.flags, true
		}
	}
	switch {
	case s.verb == "help" || s.verb == "-h" || s.verb == "-help" || s.verb == "--help":
		usage(stderr)
		return s, errHelp
	case !known:
		return s, fmt.Errorf("there is no verb %q: chaos help lists them", s.verb)
	}
	fs := s.define(strings.Fields(flags), stderr)
	switch err := fs.Parse(args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		return s, errHelp
	case err != nil:
		return s, err
	case fs.NArg() > 0:
		return s, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if err := fromEnvironment(fs, env); err != nil {
		return s, err
	}
	err := s.validate()
	return s, err
}

func (s *settings) define(own []string, stderr io.Writer) *flag.FlagSet {
	fs := flag.NewFlagSet("chaos "+s.verb, flag.ContinueOnError)
	fs.SetOutput(io.Discard) // a wrong flag is said once, by us
	fs.StringVar(&s.fleet, "fleet", "", "the fleet file (default that of the one fleet that runs)")
	fs.StringVar(&s.output, "o", "text", "text or json")
	for _, name := range own {
		switch name {
		case "secs":
			fs.Float64Var(&s.secs, name, 0, "how long, in seconds (default twice the TTL)")
		case "what":
			fs.StringVar(&s.what, name, "", "whom, by the names that list shows, separated by commas: all at once")
		case "from":
			def := string(chaos.Engine)
			if s.verb == chaos.Partition {
				def = ""
			}
			fs.StringVar(&s.from, name, def, "engine, ledger or peers")
		case "way":
			fs.StringVar(&s.way, name, string(chaos.Both), "both, up (what the node sends is lost) or down (what it is answered)")
		case "ms":
			what := "how long, in milliseconds (default twice the TTL)"
			if s.verb == chaos.SkewLeader {
				what = "how far the clock is off, in milliseconds, ahead or behind"
			}
			fs.Int64Var(&s.ms, name, 0, what)
		case "ppm":
			fs.Int64Var(&s.ppm, name, 0, "how much faster the clock runs, in millionths")
		case "between":
			fs.BoolVar(&s.between, name, false, "let the pause come between a check and a write")
		case "every":
			fs.DurationVar(&s.every, name, 5*time.Second, "time from one kill to the next")
		case "for":
			what := "how long (default ten TTLs)"
			if s.verb == "churn" {
				what = "how long (default 1m)"
			}
			fs.DurationVar(&s.length, name, 0, what)
		case "to":
			fs.StringVar(&s.to, name, "", "the node that is to lead (default one of the followers)")
		case "at":
			fs.StringVar(&s.at, name, chaos.Moments()[0], "the moment: "+strings.Join(chaos.Moments(), ", "))
		case "trigger":
			fs.StringVar(&s.trigger, name, chaos.ByResignation, "what makes the leader change: resignation or kill")
		case "seed":
			fs.Uint64Var(&s.seed, name, 1, "of the times between cuts")
		}
	}
	fs.Usage = func() {
		_, _ = fmt.Fprintf(stderr, "usage: chaos %s [flags]; %s\n", s.verb, more)
		fs.SetOutput(stderr)
		fs.PrintDefaults()
		fs.SetOutput(io.Discard)
	}
	return fs
}

func fromEnvironment(fs *flag.FlagSet, env func(string) (string, bool)) error {
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	var wrong error
	fs.VisitAll(func(f *flag.Flag) {
		name := "CHAOS_" + strings.ToUpper(f.Name)
		if v, ok := env(name); ok && v != "" && !given[f.Name] {
			if err := fs.Set(f.Name, v); err != nil {
				wrong = errors.Join(wrong, fmt.Errorf("environment %s=%q: %w", name, v, err))
			}
		}
	})
	return wrong
}

func (s *settings) validate() error {
	const day = 24 * time.Hour
	one := func(field, value string, of ...string) error {
		if slices.Contains(of, value) {
			return nil
		}
		return fmt.Errorf("%s: %q: one of %s", field, value, strings.Join(of, ", "))
	}
	err := one("o", s.output, "text", "json")
	if s.from != "" {
		err = errors.Join(err, one("from", s.from, "engine", "ledger", "peers"))
	}
	if s.way != "" {
		err = errors.Join(err, one("way", s.way, "both", "up", "down"))
	}
	if s.at != "" {
		err = errors.Join(err, one("at", s.at, chaos.Moments()...), one("trigger", cmp.Or(s.trigger, chaos.ByResignation), chaos.ByResignation, chaos.ByKill))
	}
	if named := slices.Contains([]string{chaos.Kill, chaos.Pause, chaos.Partition}, s.verb); named && s.what == "" {
		err = errors.Join(err, errors.New("whom? give --what, with names that list shows"))
	}
	if s.secs < 0 || s.secs > day.Seconds() {
		err = errors.Join(err, fmt.Errorf("secs: %v: above 0, at most a day", s.secs))
	}
	if s.verb != chaos.SkewLeader && (s.ms < 0 || s.ms > day.Milliseconds()) {
		err = errors.Join(err, fmt.Errorf("ms: %d: above 0, at most a day", s.ms))
	}
	if s.verb == chaos.SkewLeader && s.ms == 0 && s.ppm == 0 {
		err = errors.Join(err, errors.New("by how much? give --ms or --ppm"))
	}
	if s.length < 0 || s.length > day || s.every < 0 || s.verb == "churn" && s.every < 100*time.Millisecond {
		err = errors.Join(err, fmt.Errorf("every and for: %v and %v: at least 100ms, at most a day", s.every, s.length))
	}
	return err
}
