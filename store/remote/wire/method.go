package wire

// Method names a route: POST /v1/store/{method}.
type Method string

// The routes, one for each method of lease.Store.
const (
	Caps          Method = "caps"
	Open          Method = "open"
	FindSession   Method = "session"
	KeepAlive     Method = "keepalive"
	Close         Method = "close"
	Acquire       Method = "acquire"
	Release       Method = "release"
	Ask           Method = "ask"
	Answer        Method = "answer"
	Answered      Method = "answered"
	Read          Method = "read"
	Watch         Method = "watch"
	Groups        Method = "groups"
	Sessions      Method = "sessions"
	History       Method = "history"
	Meta          Method = "meta"
	RaiseEpoch    Method = "raise-epoch"
	Suspect       Method = "suspect"
	Attributes    Method = "attributes"
	SetAttributes Method = "set-attributes"
)

// Path of the route, below /v1.
func (m Method) Path() string { return "/store/" + string(m) }

// Repeatable reports whether the call may be made again although nobody knows
// what became of it: it only reads, or says the same twice.
func (m Method) Repeatable() bool {
	switch m {
	case Caps, FindSession, KeepAlive, Answered, Read, Watch, Groups, Sessions, History, Meta, Suspect, Attributes:
		return true
	default:
		return false
	}
}

const (
	// TimeoutHeader is how long the caller waits, in milliseconds.
	TimeoutHeader = "Tenure-Timeout-Ms"
	// DeploymentHeader is the deployment that the caller means. Optional.
	DeploymentHeader = "Tenure-Deployment"
	// ContentType of calls and answers.
	ContentType = "application/json"
	// ContentTypeProblem of answers that are a Problem.
	ContentTypeProblem = "application/problem+json"
	// ContentTypeStream of a watch: one Line each.
	ContentTypeStream = "application/x-ndjson"
)
