package kv_test

import (
	"context"
	"fmt"

	"github.com/tenurehq/tenure/store/kv"
	"github.com/tenurehq/tenure/store/mem"
)

// A store over a driver. The author of an engine does this once, in Open of the engine's package.
func ExampleNew() {
	driver := mem.NewDriver(mem.Options{}) // your kv.Driver
	defer driver.Close()
	store, err := kv.New(context.Background(), driver, kv.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	fmt.Println("processes observe each other:", store.Caps().Observed)
	// Output:
	// processes observe each other: false
}
