// Package report turns the results of experiments into docs/findings.md.
//
// A result becomes a record: a small JSON file that is kept in the repository, with
// pictures beside it and nothing of one machine's folders or single calls. The text is
// made from the records and from a template with our comments, in which numbers are
// named and not typed: the same records and comments give the same text, and a number
// that was not measured reads "not run".
package report
