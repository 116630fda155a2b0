package redisfence_test

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/redisfence"
)

// A leader was paused, and another one was elected and has counted on. When the first one
// resumes, its write is refused and has no effect.
func Example() {
	client := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS_ADDR")})
	defer func() { _ = client.Close() }()
	ctx := context.Background()

	f, err := redisfence.New(client, "{invoices}:mark")
	if err != nil {
		fmt.Println(err)
		return
	}
	add := redisfence.NewScript(`return redis.call('INCRBY', KEYS[1], ARGV[1])`)
	for _, token := range []fence.Token{41, 42, 41} {
		stamp := fence.Stamp{Deployment: "prod", Group: "billing", Token: token} // term.Stamp()
		total, err := f.Do(ctx, stamp, add, []string{"{invoices}:total"}, 100)
		fmt.Println("token", token, "total", total, "refused", errors.Is(err, fence.ErrRefused))
	}
	fmt.Println(client.Get(ctx, "{invoices}:total").Val())
}

const exampleOutput = `token 41 total 100 refused false
token 42 total 200 refused false
token 41 total <nil> refused true
200
`
