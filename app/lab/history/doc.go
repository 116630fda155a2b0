// Package history keeps what callers of a sequence saw, and checks it against what the
// sequence promises: a number belongs to one caller, a call that began after another
// had ended got larger numbers under no smaller token.
//
// All times are of the host's clock (clock.System), so the histories of several
// processes of one host are checked together.
package history
