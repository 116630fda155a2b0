package wire

// Method names a route: POST /v1/store/{method}.
type Method string

// The routes, one for each method of store.Store.
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
	// ListAttributes is known to services that list created groups by their attributes.
	ListAttributes Method = "list-attributes"
)

// Path of the route, below /v1.
func (m Method) Path() string { return "/store/" + string(m) }

// Repeatable reports whether the call may be repeated after an unknown outcome: it only reads,
// or has the same effect twice.
func (m Method) Repeatable() bool {
	switch m {
	case Caps, FindSession, KeepAlive, Answered, Read, Watch, Groups, Sessions, History, Meta, Suspect, Attributes, ListAttributes:
		return true
	default:
		return false
	}
}

const (
	// TimeoutHeader is how many milliseconds the caller waits.
	TimeoutHeader = "Tenure-Timeout-Ms"
	// DeploymentHeader is the deployment that the caller means. Optional.
	DeploymentHeader = "Tenure-Deployment"
	// ContentType of calls and answers.
	ContentType = "application/json"
	// ContentTypeProblem of a Problem.
	ContentTypeProblem = "application/problem+json"
	// ContentTypeStream of a watch: one Line per line.
	ContentTypeStream = "application/x-ndjson"
)
