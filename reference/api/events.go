package api

// The moments of a term at which node.Hooks are called.
const (
	MomentGranted   = "granted"   // the term has begun; nothing is sealed yet
	MomentSealed    = "sealed"    // the ledger is sealed; the work begins
	MomentWrite     = "write"     // between the check of the term and a write
	MomentSend      = "send"      // an order is about to be sent to a worker
	MomentResigning = "resigning" // the work has stopped; the group is not released yet
)

// The kinds of events that node.Hooks observe.
const (
	TraceAttempt = "attempt" // a write is about to be sent
	TraceDone    = "done"    // a write has ended; its time is that of its attempt
	TraceSealed  = "sealed"  // the ledger was sealed
	TraceBegan   = "began"   // a term of this node began
	TraceEnded   = "ended"   // a term of this node ended
	TraceMissed  = "missed"  // a keep-alive failed
	TraceLed     = "led"     // this node saw a leader
	TraceVacant  = "vacant"  // this node saw that nobody leads
	TraceUnknown = "unknown" // this node cannot see who leads
	TraceCall    = "call"    // the engine is about to be called
)

// The calls of an engine that are counted.
const (
	CallOpen      = "open"
	CallKeepAlive = "keep-alive"
	CallClose     = "close"
	CallAcquire   = "acquire"
	CallRelease   = "release"
	CallRead      = "read"
	CallLine      = "line"
	CallWatch     = "watch"
)
