package fence_test

import (
	"errors"
	"fmt"

	"github.com/tenurehq/tenure/fence"
)

// A leader was paused, and another one was elected and has written. When the first one
// resumes, the sink refuses its write.
func ExampleMark_Admit() {
	// row stands for what a database stores: the mark with the data that it protects.
	var row struct {
		mark    fence.Mark
		balance int
	}
	// write stands for one transaction with the check and the write.
	write := func(s fence.Stamp, balance int) error {
		next, err := row.mark.Admit(s)
		if err != nil {
			return err
		}
		row.mark, row.balance = next, balance
		return nil
	}

	first := fence.Stamp{Deployment: "prod", Group: "billing", Token: 41}
	second := fence.Stamp{Deployment: "prod", Group: "billing", Token: 42}

	fmt.Println(write(first, 100))
	fmt.Println(write(second, 200))
	err := write(first, 150)
	fmt.Println(err)
	fmt.Println(errors.Is(err, fence.ErrRefused), row.balance)
	// Output:
	// <nil>
	// <nil>
	// fence: stale write refused: prod/billing token 41, but the sink has seen token 42: stop, another leads
	// true 200
}

// A strict sink has one ordered writer. It recognises a write that is repeated because its
// answer was lost, and refuses one that differs.
func ExampleMark_AdmitStrict() {
	mark := fence.Mark{}
	write := func(seq uint64, digest string) {
		s := fence.Stamp{Deployment: "prod", Group: "billing", Token: 42, Seq: seq}
		next, verdict, err := mark.AdmitStrict(s, digest)
		switch {
		case err != nil:
			fmt.Println(err)
		case verdict == fence.Retry:
			fmt.Println("seq", seq, "was made before: answer as then")
		default:
			mark = next
			fmt.Println("seq", seq, "is made")
		}
	}
	write(1, "+100")
	write(2, "-30")
	write(2, "-30")
	write(2, "-99")
	write(1, "+100")
	// Output:
	// seq 1 is made
	// seq 2 is made
	// seq 2 was made before: answer as then
	// fence: clone refused: prod/billing token 42 seq 2 was already written with digest "-30", now comes "-99": two processes write under one token
	// fence: stale write refused: prod/billing token 42 seq 1, but seq 2 was already written: writes must come in order
}
