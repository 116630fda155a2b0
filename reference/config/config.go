// Package config says what is wrong with a configuration.
package config

import (
	"cmp"
	"errors"
	"fmt"
)

// Error: this configuration can never work.
type Error struct {
	Field string
	Rule  string
}

func (e *Error) Error() string { return e.Field + ": " + e.Rule }

// Errorf returns an Error for a field.
func Errorf(field, format string, args ...any) *Error {
	return &Error{Field: field, Rule: fmt.Sprintf(format, args...)}
}

// Errors are the broken rules of a configuration.
type Errors []error

// Add adds an Error for a field.
func (e *Errors) Add(field, format string, args ...any) {
	*e = append(*e, Errorf(field, format, args...))
}

// Check adds an error, if there is one.
func (e *Errors) Check(err error) {
	if err != nil {
		*e = append(*e, err)
	}
}

// Join is the error of all broken rules; nil if there are none.
func (e Errors) Join() error { return errors.Join(e...) }

// Negative adds an Error for each field whose value is negative.
func Negative[T cmp.Ordered](e *Errors, fields map[string]T) {
	for field, v := range fields {
		if v < *new(T) {
			e.Add(field, "%v is negative", v)
		}
	}
}
