package strategies

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// flagFailure shows one of the four failures of a flag in a database. It returns what was seen, or
// an error if the failure did not happen.
type flagFailure struct {
	name string
	show func(ctx context.Context, a *arena) (string, error)
}

func flagFailures() []flagFailure {
	return []flagFailure{
		{"stuck after a crash", stuckFlag},
		{"a death is not detected", undetectedDeath},
		{"a late write is not fenced", lateFlagWrite},
		{"two candidates set the flag", twoSetters},
	}
}

// flagTTL is short; a flag has none, and its candidates look four times in it.
const flagTTL = time.Second

// flagFleet starts candidates with a leader.
func flagFleet(ctx context.Context, a *arena) (*fleet, *proc, error) {
	f, err := a.start(ctx, options{nodes: 3, ttl: flagTTL, fence: true})
	if err != nil {
		return nil, nil, err
	}
	if p := f.leader(ctx, time.Minute); p != nil {
		return f, p, nil
	}
	f.stop()
	return nil, nil, fmt.Errorf("nobody leads: %v", f.log())
}

// looked waits until the others have looked at the flag so often that they would have noticed.
func looked(ctx context.Context, f *fleet, leader *proc) (seen string, err error) {
	const looks = 20
	others := f.except(leader)
	_, before, err := f.count(ctx, others)
	for after := before; err == nil && after < before+looks; {
		pause(ctx, flagTTL/10)
		_, after, err = f.count(ctx, others)
	}
	if err != nil {
		return "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.terms) > 1 {
		return "", errors.New("another candidate leads")
	}
	return fmt.Sprintf("the others looked %d times, and nobody leads", looks), nil
}

func stuckFlag(ctx context.Context, a *arena) (string, error) {
	f, leader, err := flagFleet(ctx, a)
	if err != nil {
		return "", err
	}
	defer f.stop()
	f.kill(leader)
	return looked(ctx, f, leader)
}

func undetectedDeath(ctx context.Context, a *arena) (string, error) {
	f, leader, err := flagFleet(ctx, a)
	if err != nil {
		return "", err
	}
	defer f.stop()
	if err := f.pause(ctx, leader); err != nil {
		return "", err
	}
	return looked(ctx, f, leader)
}

// lateFlagWrite lets an operator clear the flag of a leader that hangs.
func lateFlagWrite(ctx context.Context, a *arena) (string, error) {
	f, leader, err := flagFleet(ctx, a)
	if err != nil {
		return "", err
	}
	defer f.stop()
	if err := f.pause(ctx, leader); err != nil {
		return "", err
	}
	conn, err := pgx.Connect(ctx, "postgres://tenure@"+a.addrs[0]+"/postgres?sslmode=disable")
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, "UPDATE strategy_flag SET is_leader = false WHERE grp = $1", leader.cfg.Group); err != nil {
		return "", err
	}
	if !f.await(ctx, time.Minute, func() bool { return len(f.terms) > 1 }) {
		return "", errors.New("nobody leads after the flag was cleared")
	}
	if err := f.resume(leader); err != nil {
		return "", err
	}
	if !f.await(ctx, time.Minute, func() bool { return f.accepted > 0 || leader.term.ended > 0 }) {
		return "", errors.New("the old leader neither wrote nor stopped")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.accepted == 0 {
		return "", errNoEffect // it was stopped before its check
	}
	return fmt.Sprintf("the fence is on, and %d writes of the old leader were accepted beside the new one", f.accepted), nil
}

func twoSetters(ctx context.Context, a *arena) (string, error) {
	f, err := a.start(ctx, options{nodes: 2, ttl: flagTTL, change: func(c *Config) { c.Think = flagTTL / 4 }})
	if err != nil {
		return "", err
	}
	defer f.stop()
	f.await(ctx, 4*flagTTL, func() bool { return len(f.terms) == 2 })
	f.mu.Lock()
	n := len(f.terms)
	f.mu.Unlock()
	if n < 2 {
		return "", errNoEffect // one looked when the other had set
	}
	return "both read that nobody leads, both set the flag, and both believe", nil
}

// flagFailures shows the four failures one by one.
func (a *arena) flagFailures(ctx context.Context) (seen []string, err error) {
	for _, x := range flagFailures() {
		const tries = 10
		text, err := "", errNoEffect
		for try := 0; try < tries && errors.Is(err, errNoEffect); try++ {
			text, err = x.show(ctx, a)
		}
		if err != nil {
			return seen, fmt.Errorf("%s: %w", x.name, err)
		}
		seen = append(seen, x.name+": "+text)
	}
	return seen, nil
}
