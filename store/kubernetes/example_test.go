package kubernetes_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/tenurehq/tenure"
	"github.com/tenurehq/tenure/lease"
	"github.com/tenurehq/tenure/store/kubernetes"
)

// A pod leads a group with the Leases of its own namespace.
func ExampleOpen() {
	ctx := context.Background()
	st, err := kubernetes.Open(ctx, kubernetes.Config{})
	if err != nil {
		log.Print(err)
		return
	}
	defer st.Close()
	err = lease.Lead(ctx, st, "billing", os.Getenv("POD_NAME"), func(ctx context.Context, term *tenure.Term) error {
		log.Println("leads as", term.Stamp())
		<-ctx.Done()
		return nil
	})
	log.Print(err)
}

// A URL chooses the namespace, and the prefix of the names of the Leases.
func ExampleParse() {
	cfg, err := kubernetes.Parse("kubernetes://production?name=billing")
	fmt.Println(cfg.Namespace, cfg.Name, err)
	// Output: production billing <nil>
}
