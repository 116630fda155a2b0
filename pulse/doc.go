// Package pulse proves that a process has died, so that a crash is followed by an election in
// milliseconds and not after the TTL.
//
// A keeper is a process on the same host. It holds a pidfd of each process that registers, and
// the kernel reports the exit of that process through it. Then the keeper ends the process's
// session with the reason [store.Died]. For everybody else that is an ordinary vacancy.
//
// A program that starts its own keeper:
//
//	func main() {
//		pulse.Main(open) // returns, unless this process was started as a keeper
//		keeper, err := pulse.Start(nil)
//		if err != nil {
//			log.Print(err) // the TTL applies
//		}
//		node, err := lease.New(st, lease.Config{…, Keeper: keeper})
//
// A host with many programs runs `tenure keeper`, and each program calls [Dial]. A server can be
// the keeper of its clients: see [Keeper.Peers].
//
// # What counts as proof
//
// Only the pidfd. A connection that ends, a refused dial, a silent process, a stopped process or
// a failed keep-alive is no proof: the process may go on. A keeper ends only sessions that were
// registered with it by a process that knows the session's instance, which is secret. It opens
// the pidfd before it asks the process to echo a number, and the kernel names the sender of the
// echo, so that the next process with the same id is not taken for the first. While a process lives, no
// other process can register its sessions. A server gets the pidfd of a client from the kernel
// (SO_PEERPIDFD), and the kernel names the sender of all that it reads.
//
// # Hints
//
// [Hints] end sessions of processes that have probably died, on another host. They are off unless
// a program runs them, they end only sessions that were opened as fenced, and the reason is
// [store.Suspected].
//
// # Limitations
//
// The TTL applies as before if the host dies, if the keeper is gone or has no rights, if the
// network between keeper and engine is down, and on systems other than Linux. Keepers need
// Linux 5.3, and servers that are keepers Linux 6.5.
//
// A dead process can leave something behind: its children, and bytes in socket buffers that the
// kernel still sends. Work that others must not see twice needs a fence, as after every crash.
package pulse
