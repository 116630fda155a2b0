package consul_test

import (
	"context"
	"fmt"
	"log"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store/consul"
)

// The leader of a group, elected through the Consul agent on this host. While it leads, DNS
// answers for billing.service.consul with its address.
func ExampleOpen() {
	ctx := context.Background()
	store, err := consul.Open(ctx, consul.Config{Addresses: []string{"http://127.0.0.1:8500"}})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()

	err = lease.Lead(ctx, store, "billing", "node-1", func(ctx context.Context, term *tenure.Term) error {
		go func() {
			if err := store.Publish(term, consul.Service{Port: 8080}); err != nil {
				log.Print(err)
			}
		}()
		return work(ctx, term)
	})
	if err != nil {
		log.Print(err)
	}
}

func work(ctx context.Context, term *tenure.Term) error {
	fmt.Println("leading with token", term.Token())
	<-ctx.Done()
	return nil
}

// The configuration as one URL, for a flag.
func ExampleParse() {
	cfg, err := consul.Parse("consul://127.0.0.1:8500/tenure?check=serfHealth")
	fmt.Println(cfg.Addresses, cfg.Prefix, cfg.Checks, err)
	// Output: [http://127.0.0.1:8500] tenure [serfHealth] <nil>
}
