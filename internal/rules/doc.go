// Package rules has tests of the repository itself: which package may import which, that the
// core needs only the standard library, and what no file may contain. It has no other code.
package rules
