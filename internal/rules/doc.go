// Package rules holds the tests that keep the shape of this repository: who may
// import whom, that the core needs nothing but the standard library, and what no
// file may contain. It has no code of its own.
package rules
