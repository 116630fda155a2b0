package tenure_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store"
	"github.com/tenurehq/tenure/store/mem"
	"github.com/tenurehq/tenure/tenuretest"
)

// candidate joins the election of group billing, until leave is called.
func candidate(st store.Store, id string) (e tenure.Elector, leave func()) {
	node, err := lease.New(st, lease.Config{
		Candidate: tenure.Candidate{ID: id},
		Scope:     store.Scope{"billing"},
	})
	if err != nil {
		log.Fatal(err)
	}
	elector, err := node.Elector("billing")
	if err != nil {
		log.Fatal(err)
	}
	return elector, func() {
		if err := node.Close(context.Background()); err != nil {
			log.Print(err)
		}
	}
}

// Lead runs work whenever this process leads. Work that is finished for good
// returns ErrDone.
func ExampleLead() {
	st := mem.New(mem.Options{}) // for tests and examples; production uses a real engine
	defer st.Close()
	node, err := lease.New(st, lease.Config{
		Candidate: tenure.Candidate{ID: "node-1"},
		Scope:     store.Scope{"billing"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = node.Close(context.Background()) }()
	elector, err := node.Elector("billing")
	if err != nil {
		fmt.Println(err)
		return
	}

	err = tenure.Lead(context.Background(), elector, func(ctx context.Context, term *tenure.Term) error {
		fmt.Printf("%s leads %s with token %d\n", term.Candidate().ID, term.Group(), term.Token())
		return tenure.ErrDone
	})
	fmt.Println("done:", err)
	// Output:
	// node-1 leads billing with token 1
	// done: <nil>
}

// A program that cannot be called back campaigns by hand, and resigns when its
// work has stopped.
func ExampleElector_campaign() {
	store := mem.New(mem.Options{})
	defer store.Close()
	elector, leave := candidate(store, "node-1")
	defer leave()

	for range 2 {
		term, err := elector.Campaign(context.Background())
		if err != nil {
			fmt.Println(err) // the context ended, or the node was closed
			return
		}
		fmt.Println("leading with token", term.Token())
		// work, until it is done or <-term.Context().Done()
		if err := term.Resign(context.Background()); err != nil {
			log.Print(err) // the group is free when the session expires
		}
		fmt.Println(term.Check())
	}
	// Output:
	// leading with token 1
	// tenure: term of group "billing" with token 1 is over: resigned
	// leading with token 2
	// tenure: term of group "billing" with token 2 is over: resigned
}

// A leader that is about to be replaced by a new version hands over to it. Work
// returns first, then the successor leads: nobody has to wait for a session to
// expire.
func ExampleTerm_TransferTo() {
	store := mem.New(mem.Options{})
	defer store.Close()
	blue, leave := candidate(store, "blue")
	defer leave()
	green, leave := candidate(store, "green")
	defer leave()

	term, err := blue.Campaign(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	next := make(chan *tenure.Term)
	go func() {
		t, err := green.Campaign(context.Background())
		if err != nil {
			fmt.Println(err)
		}
		next <- t
	}()

	// Somebody who does not stand for the group cannot take it, and blue goes on.
	err = term.TransferTo(context.Background(), "red")
	fmt.Println("no such successor:", errors.Is(err, tenure.ErrSuccessor), "still leading:", term.Check() == nil)

	// Green may not have joined yet.
	for errors.Is(term.TransferTo(context.Background(), "green"), tenure.ErrSuccessor) {
		time.Sleep(time.Millisecond)
	}
	successor := <-next
	fmt.Println(context.Cause(term.Context()))
	fmt.Printf("%s leads with token %d\n", successor.Candidate().ID, successor.Token())
	_ = successor.Resign(context.Background())
	// Output:
	// no such successor: true still leading: true
	// tenure: term of group "billing" with token 1 is over: transferred to a successor
	// green leads with token 2
}

// Leaders tells a load balancer, or a client, whom to talk to.
func ExampleElector_leaders() {
	store := mem.New(mem.Options{})
	defer store.Close()
	elector, leave := candidate(store, "node-1")
	defer leave()
	observer, leave := candidate(store, "observer") // it never campaigns
	defer leave()

	term, err := elector.Campaign(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	for leader, err := range observer.Leaders(context.Background()) {
		switch leader.State {
		case tenure.Led:
			fmt.Println("led by", leader.Candidate.ID, "with token", leader.Token)
			go func() { _ = term.Resign(context.Background()) }()
			continue
		case tenure.Vacant:
			fmt.Println("vacant since token", leader.Token, "because it", leader.Reason)
		case tenure.Unknown:
			fmt.Println("cannot be seen:", err) // not vacant: keep what you knew
			continue
		}
		break
	}
	// Output:
	// led by node-1 with token 1
	// vacant since token 1 because it resigned
}

// Check belongs on the line before a write: it reads the clock, so it is right
// even in a process that has just woken up and was told nothing yet.
func ExampleTerm_Check() {
	st := mem.New(mem.Options{})
	defer st.Close()
	// A node that can be paused, as a garbage collector or a hypervisor would.
	node, err := tenuretest.NewNode(st, lease.Config{
		Candidate: tenure.Candidate{ID: "node-1"},
		Scope:     store.Scope{"billing"},
		Timing:    lease.Timing{TTL: 500 * time.Millisecond},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer node.Crash()
	term, err := node.Elector("billing").Campaign(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("before:", term.Check())

	node.Pause()
	time.Sleep(500 * time.Millisecond)
	fmt.Println("the context has ended:", term.Context().Err() != nil)
	fmt.Println("after:", term.Check())
	// Output:
	// before: <nil>
	// the context has ended: false
	// after: tenure: term of group "billing" with token 1 is over: expired: no keep-alive was acknowledged in time
}

// table is a sink: it checks the stamp and makes the write in one step. Here the
// step is one goroutine's turn; with a database it is one transaction.
type table struct {
	mark fence.Mark
	rows []string
}

// Seal implements fence.Sealer.
func (t *table) Seal(_ context.Context, s fence.Stamp) (err error) {
	t.mark, err = t.mark.Admit(s)
	return err
}

// Insert writes a row, unless a newer leader was here.
func (t *table) Insert(s fence.Stamp, row string) error {
	mark, err := t.mark.Admit(s)
	if err != nil {
		return err
	}
	t.mark, t.rows = mark, append(t.rows, row)
	return nil
}

// A sink that all leaders share is sealed before work begins. From then on no
// older leader gets a write in, not even between this one's first read and its
// first write.
func ExampleWithSinks() {
	store := mem.New(mem.Options{Deployment: "example"})
	defer store.Close()
	elector, leave := candidate(store, "node-1")
	defer leave()
	invoices := &table{}

	old, err := elector.Campaign(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := old.Resign(context.Background()); err != nil {
		fmt.Println(err)
		return
	}
	err = tenure.Lead(context.Background(), elector, func(ctx context.Context, term *tenure.Term) error {
		// The former leader has a write left, and has not noticed that it is over.
		fmt.Println(invoices.Insert(old.Stamp(), "written too late"))
		if err := invoices.Insert(term.Stamp(), "invoice 1"); err != nil {
			return err
		}
		return tenure.ErrDone
	}, tenure.WithSinks(invoices))
	fmt.Println(invoices.rows, err)
	// Output:
	// fence: stale write refused: example/billing token 1, but the sink has seen token 2: stop, another leads
	// [invoice 1] <nil>
}
