package main

// The columns.
const (
	tenureExec  = "tenure exec"
	etcdctlLock = "etcdctl lock"
	consulLock  = "consul lock"
	tenureLead  = "tenure.Lead"
	clientGo    = "client-go"
	redsyncLock = "redsync"
)

// The versions of the programs that are built. Those of the Go modules are in go.mod.
const (
	etcdctlVersion = "v3.7.3"
	consulVersion  = "v1.22.7"
	kubeVersion    = "v1.37.1"
)

// note is the result of a test.
type note struct {
	When string `json:"when"`
	// Cells are the texts by column.
	Cells map[string]string `json:"cells"`
	// Versions of all programs and modules, as they print them where possible.
	Versions map[string]string `json:"versions"`
}

type table struct {
	title   string
	intro   string
	columns []string
	rows    []tableRow
}

// tableRow is a question, and the test that answers it.
type tableRow struct {
	test string
	what string
}

// tables are the tables of the page. A test without a row fails.
func tables() []table {
	return []table{
		{
			title: "Commands that run a command under a lock",
			intro: "The command is three processes that ignore SIGTERM, one of them in a session of its own. " +
				"A second wrapper stands in line, and starts its own command when it gets the lock. " +
				"A cell says how many of the three processes of the first were still running beside it, and for how long; then how the first wrapper ended.",
			columns: []string{tenureExec, etcdctlLock, consulLock},
			rows: []tableRow{
				{"TestPaused", "the wrapper is paused until its lease is over"},
				{"TestKilled", "the wrapper is killed (SIGKILL)"},
				{"TestEngineGone", "the engine is gone for 10 s and comes back with its data"},
				{"TestRevoked", "the lease or session is revoked by an operator"},
				{"TestTerminated", "the wrapper gets SIGTERM, and again a second later"},
				{"TestNumber", "a number that grows with each win is given to the command"},
				{"TestExitCode", "the command ends with exit code 7: the wrapper's"},
			},
		},
		{
			title: "Libraries",
			intro: "Each candidate is a process. A leader believes as long as the library tells its work so: `Term.Check`, the context of `OnStartedLeading`, `Mutex.Until`. " +
				"redsync is a lock and no election: waiting in a loop, extending at a third of the expiry, ending the work when that fails and unlocking after it were written for it here, as its users must.",
			columns: []string{tenureLead, clientGo, redsyncLock},
			rows: []tableRow{
				{"TestToken", "a number that grows with each win is given to the winner"},
				{"TestLateWritePlain", "a leader is paused between its check and its write, another leads and writes, the first goes on: at a plain key its late write …"},
				{"TestLateWriteFenced", "… and at a key that compares tokens"},
				{"TestCutOff", "a leader is cut off from the engine: it and the next believe both, for …"},
				{"TestDataLost", "the engine loses its data and comes back empty: both believe, for …"},
				{"TestResign", "a leader is told to stop, and its work needs 2 s for that: the next begins …"},
				{"TestCrashDefaults", "a leader is killed: until the next leads, each with its own defaults (median of 5)"},
				{"TestCrashShort", "the same with leases of 3 s (median of 5)"},
			},
		},
	}
}

// columns are the columns of a test's table; none if it has no row.
func columns(test string) []string {
	for _, t := range tables() {
		for _, row := range t.rows {
			if row.test == test {
				return t.columns
			}
		}
	}
	return nil
}
