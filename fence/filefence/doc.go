// Package filefence fences a directory, for jobs that write files.
//
// It is not a fence for whoever writes around it: only what goes through a [Dir]
// is checked. It is none on network file systems, where a lock may be granted
// twice and a rename may be seen late, and none for directories that are restored
// from a backup or copied together with their mark. Deleting the folder .tenure
// resets it. A job that is killed half way leaves the files that it has written so
// far; only [Dir.WriteFile] is all or nothing. The lock ends with its process: the
// children of a job that is killed go on without it, unless they are killed with
// it. A holder that is stopped and not killed keeps it, and keeps everybody out.
// Files are fenced, not what else a job does. Systems without flock are refused by
// Open.
//
// In the directory, the folder .tenure holds the mark. A write takes the lock,
// compares its stamp with the mark, stores the mark if it rises (written beside,
// synced, renamed, the folder synced), and only then touches a file; the lock is
// held to the end. A mark that is met for the first time is stored once more: who
// wrote it may have been killed before it was synced. The mark goes first: a crash
// between the two leaves a mark that is ahead of the files, and never lets an older
// leader in. The lock is the kernel's, on the directory itself (do not flock it
// around a job that uses this package), so it ends with its process, also by
// kill -9.
//
//	dir, err := filefence.Open("/var/lib/reports")
//	…
//	err = dir.WriteFile(ctx, stamp, "2026-11.csv", data, 0o644)
//	err = dir.Do(ctx, stamp, func(root *os.Root) error { … }) // anything else
package filefence
