package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/redisfence"
)

// candidateEnv makes this program a candidate.
const candidateEnv = "TENURE_COMPARE_CANDIDATE"

// candidacy is the configuration of a candidate.
type candidacy struct {
	Library string
	ID      string
	Group   string
	// Engine is the address of the engine, and for Kubernetes a secret.
	Engine, Secret string
	// Store is the URL of the engine for Tenure, if it is not etcd.
	Store string
	// Short means leases of 3 s instead of the library's default.
	Short bool
	// TTL of the lease; 0: see Short.
	TTL time.Duration
	// Release makes client-go release its lease when it ends.
	Release bool
	// Winding is how long the work takes to stop.
	Winding time.Duration
	// Sink is the Redis that leaders write to; none if empty.
	Sink string
}

const shortLease = 3 * time.Second

// lease is the TTL to use; 0: the library's default.
func (c candidacy) lease() time.Duration {
	if c.TTL == 0 && c.Short {
		return shortLease
	}
	return c.TTL
}

// event is a message of a candidate to the test, one line of JSON each.
type event struct {
	What  string
	At    time.Time
	Token uint64 `json:",omitempty"`
	// Said is an error or another detail.
	Said string `json:",omitempty"`
}

// The events of a candidate.
const (
	evLeads    = "leads"
	evChecked  = "checked"  // it believes, and is about to write
	evWrote    = "wrote"    // Said: why not
	evDoubts   = "doubts"   // At: when it last believed
	evReturned = "returned" // the work has
)

// The commands to a candidate, one word per line.
const (
	askPlain  = "plain"  // check, and write without a token
	askFenced = "fenced" // check, and write with one
	askGo     = "go"     // the write that was checked
	askStop   = "stop"   // resign and end
)

// election runs an election with a library: work runs once for each win.
type election func(ctx context.Context, c candidacy, work func(context.Context, win)) error

// win is the argument of work.
type win struct {
	believes func() bool
	// stamp has the token, zero if there is none.
	stamp fence.Stamp
	// said is any other number that the library has.
	said string
}

func (c candidacy) election() (election, error) {
	switch c.Library {
	case tenureLead:
		return leadByTenure, nil
	case clientGo:
		return leadByClientGo, nil
	case redsyncLock:
		return leadByRedsync, nil
	case consulAPI:
		return leadByConsul, nil
	case zkLock:
		return leadByZooKeeper, nil
	case advisoryLock:
		return leadByAdvisoryLock, nil
	default:
		return nil, fmt.Errorf("no library is called %q", c.Library)
	}
}

// candidate is a candidate inside its process.
type candidate struct {
	candidacy
	asked chan string

	mu  sync.Mutex
	out *json.Encoder
}

// standAsCandidate runs until it is asked to stop or its input ends.
func standAsCandidate(text string) error {
	c := &candidate{asked: make(chan string), out: json.NewEncoder(os.Stdout)}
	if err := json.Unmarshal([]byte(text), &c.candidacy); err != nil {
		return err
	}
	lead, err := c.election()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	// Nothing waits for the reader: the process ends when its input ends, or before.
	go func() {
		defer cancel()
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() && in.Text() != askStop {
			select {
			case c.asked <- in.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	err = lead(ctx, c.candidacy, c.work)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (c *candidate) tell(e event) {
	if e.At.IsZero() {
		e.At = time.Now()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.out.Encode(e)
}

// work runs commands until it is asked to stop, and then takes its time to stop.
func (c *candidate) work(ctx context.Context, w win) {
	c.tell(event{What: evLeads, Token: uint64(w.stamp.Token), Said: w.said})
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { c.watchBelief(w, done) })
	defer watching.Wait()
	defer close(done)
	for {
		select {
		case what := <-c.asked:
			c.tell(event{What: evChecked, Said: fmt.Sprint(w.believes())})
			<-c.asked // go
			e := event{What: evWrote}
			if err := c.write(context.WithoutCancel(ctx), what, w); err != nil {
				e.Said = err.Error()
			}
			c.tell(e)
		case <-ctx.Done():
			time.Sleep(c.Winding)
			c.tell(event{What: evReturned})
			return
		}
	}
}

// watchBelief reports when the leader no longer believes.
func (c *candidate) watchBelief(w win, done <-chan struct{}) {
	last := time.Now()
	for {
		asked := time.Now()
		if !w.believes() {
			c.tell(event{What: evDoubts, At: last})
			return
		}
		last = asked
		select {
		case <-done:
			c.tell(event{What: evDoubts, At: last})
			return
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// The keys of the sink.
const (
	plainKey  = "{invoices}:plain"
	fencedKey = "{invoices}:fenced"
	markKey   = "{invoices}:mark"
)

func (c *candidate) write(ctx context.Context, what string, w win) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	client := redis.NewClient(&redis.Options{Addr: c.Sink})
	defer func() { _ = client.Close() }()
	if what == askPlain {
		return client.Set(ctx, plainKey, c.ID, 0).Err()
	}
	if w.stamp.Token == 0 {
		return errors.New("there is no token to write with")
	}
	f, err := redisfence.New(client, markKey)
	if err != nil {
		return err
	}
	return f.Set(ctx, w.stamp, fencedKey, c.ID, 0)
}
