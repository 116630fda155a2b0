// Package report turns the results of experiments into docs/findings.md.
//
// A result becomes a record: a small JSON file in the repository, with pictures beside it and
// without folders of one machine or single calls. The text is made from the records and from
// a template with our comments. The template names the numbers instead of quoting them: the
// same records and comments give the same text, and a number that is not recorded reads "not
// run".
package report
