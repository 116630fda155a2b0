// Package filefence fences a directory, for jobs that write files.
//
//	dir, err := filefence.Open("/var/lib/reports")
//	…
//	err = dir.WriteFile(ctx, stamp, "2026-11.csv", data, 0o644)
//	err = dir.Do(ctx, stamp, func(root *os.Root) error { … }) // anything else
//
// # Limitations
//
// Only writes through a [Dir] are checked. Other effects of a job are not fenced.
//
// Do not use it on network file systems, where a lock may be granted twice and a rename may
// be seen late, or on directories that are restored or copied together with their mark.
// Deleting the folder .tenure resets the mark. [Open] refuses systems without flock.
//
// Only [Dir.WriteFile] is all or nothing. A job that is killed half way leaves the files that
// it has written so far. The lock ends with its process: children of a killed job continue
// without it, unless they are killed too. A holder that is stopped and not killed keeps the
// lock and blocks everybody else.
//
// # How it works
//
// The folder .tenure in the directory has the mark. A write takes the lock, compares its
// stamp with the mark, stores the mark if it rises (write to a new file, sync, rename, sync
// the folder), and then touches the file. It holds the lock until the end. Because the mark
// is stored first, a crash leaves a mark that is ahead of the files and never lets an older
// leader in. A mark that is read for the first time is stored once more: its writer may have
// been killed before the sync.
//
// The lock is the kernel's flock on the directory itself, so it ends with its process, even
// after kill -9. Do not flock the directory around a job that uses this package.
package filefence
