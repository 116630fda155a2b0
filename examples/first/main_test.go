package main

// The program leads, writes with its token, and ends.
func Example() {
	main()
	// Output: written by mem/billing token 1
}
