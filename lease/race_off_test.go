//go:build !race

package lease_test

const raced = false
