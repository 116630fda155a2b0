package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/tenurehq/tenure/lab/chaos"
)

// verb is a command of the program.
type verb struct{ name, what, flags string }

// verbs are the commands: every kind of fault, and what is not a single fault.
func verbs() (all []verb) {
	for _, k := range chaos.Kinds() {
		all = append(all, verb{k.Name, k.What, k.Options})
	}
	return append(all,
		verb{"churn", "kill the leader again and again", "every for"},
		verb{"list", "show the fleet, the faults in effect, and the commands", ""},
		verb{"heal", "undo what a chaos process that was killed has left", ""})
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
	_, _ = fmt.Fprintf(w, "usage: chaos COMMAND [flags]\n\n")
	for _, v := range verbs() {
		_, _ = fmt.Fprintf(w, "  %-17s %s\n", v.name, v.what)
	}
	_, _ = fmt.Fprintf(w, "\nchaos COMMAND -h lists its flags; %s.\n", more)
}

func parse(args []string, env func(string) (string, bool), stderr io.Writer) (settings, error) {
	var s settings
	if len(args) == 0 {
		usage(stderr)
		return s, errors.New("missing command")
	}
	s.verb = args[0]
	if slices.Contains([]string{"help", "-h", "-help", "--help"}, s.verb) {
		usage(stderr)
		return s, errHelp
	}
	i := slices.IndexFunc(verbs(), func(v verb) bool { return v.name == s.verb })
	if i < 0 {
		return s, fmt.Errorf("unknown command %q; see chaos help", s.verb)
	}
	fs := s.define(strings.Fields(verbs()[i].flags), stderr)
	switch err := fs.Parse(args[1:]); {
	case errors.Is(err, flag.ErrHelp):
		return s, errHelp
	case err != nil:
		return s, err
	case fs.NArg() > 0:
		return s, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	return s, errors.Join(fromEnvironment(fs, env), s.validate())
}

// define defines the flags of a command.
func (s *settings) define(own []string, stderr io.Writer) *flag.FlagSet {
	fs := flag.NewFlagSet("chaos "+s.verb, flag.ContinueOnError)
	fs.SetOutput(io.Discard) // run prints a wrong flag once
	from, ms, length := string(chaos.Engine), "how long, in milliseconds (default twice the TTL)", "how long (default ten TTLs)"
	switch s.verb {
	case chaos.Partition:
		from = ""
	case chaos.SkewLeader:
		ms = "error of the clock in milliseconds, ahead or behind"
	case "churn":
		length = "how long (default 1m)"
	}
	all := map[string]func(name string){
		"fleet": func(n string) { fs.StringVar(&s.fleet, n, "", "fleet file (default that of the one fleet that runs)") },
		"o":     func(n string) { fs.StringVar(&s.output, n, "text", "text or json") },
		"secs":  func(n string) { fs.Float64Var(&s.secs, n, 0, "how long, in seconds (default twice the TTL)") },
		"what": func(n string) {
			fs.StringVar(&s.what, n, "", "targets, by the names that list shows, separated by commas")
		},
		"from": func(n string) { fs.StringVar(&s.from, n, from, "engine, ledger or peers") },
		"way": func(n string) {
			fs.StringVar(&s.way, n, string(chaos.Both), "both, up (what the node sends is lost) or down (what it receives is lost)")
		},
		"ms":      func(n string) { fs.Int64Var(&s.ms, n, 0, ms) },
		"ppm":     func(n string) { fs.Int64Var(&s.ppm, n, 0, "how much faster the clock runs, in millionths") },
		"between": func(n string) { fs.BoolVar(&s.between, n, false, "pause between a check and a write") },
		"every":   func(n string) { fs.DurationVar(&s.every, n, 5*time.Second, "time between two kills") },
		"for":     func(n string) { fs.DurationVar(&s.length, n, 0, length) },
		"to":      func(n string) { fs.StringVar(&s.to, n, "", "the next leader (default one of the followers)") },
		"at": func(n string) {
			fs.StringVar(&s.at, n, chaos.Moments()[0], "the moment: "+strings.Join(chaos.Moments(), ", "))
		},
		"trigger": func(n string) {
			fs.StringVar(&s.trigger, n, chaos.ByResignation, "what makes the leader change: resignation or kill")
		},
		"seed": func(n string) { fs.Uint64Var(&s.seed, n, 1, "seed of the times between cuts") },
	}
	for _, name := range append([]string{"fleet", "o"}, own...) {
		all[name](name)
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
	var all []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			all = append(all, fmt.Errorf(format, args...))
		}
	}
	one := func(name, value string, of ...string) {
		bad(value != "" && !slices.Contains(of, value), "%s: %q is not one of %s", name, value, strings.Join(of, ", "))
	}
	one("o", s.output, "text", "json")
	one("from", s.from, "engine", "ledger", "peers")
	one("way", s.way, "both", "up", "down")
	one("at", s.at, chaos.Moments()...)
	one("trigger", s.trigger, chaos.ByResignation, chaos.ByKill)
	skew := s.verb == chaos.SkewLeader
	bad(slices.Contains([]string{chaos.Kill, chaos.Pause, chaos.Partition}, s.verb) && s.what == "", "missing target: give --what, with names that list shows")
	bad(s.secs < 0 || s.secs > day.Seconds(), "secs: %v is not between 0 and a day", s.secs)
	bad(!skew && (s.ms < 0 || s.ms > day.Milliseconds()), "ms: %d is not between 0 and a day", s.ms)
	bad(skew && s.ms == 0 && s.ppm == 0, "missing error of the clock: give --ms or --ppm")
	bad(s.length < 0 || s.length > day || s.every < 0 || s.verb == "churn" && s.every < 100*time.Millisecond,
		"every and for: %v and %v are not between 100ms and a day", s.every, s.length)
	return errors.Join(all...)
}
