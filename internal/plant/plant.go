// Package plant names the bugs that are planted to prove that the tests catch them. In an
// ordinary build a Set is empty and cannot be filled, so the compiler removes every planted
// branch. Only the build tag "planted" enables them.
package plant

// Bug is a mistake that others have made, or that we might make.
type Bug uint8

// The bugs. Each is planted at the one place where it would occur.
const (
	None Bug = iota

	// In the machine.

	TrustFromReply    // trust is counted from when the reply arrived
	TrustFromWin      // winning extends trust
	IgnoreTrustEnd    // a term outlives its trust
	NoDrift           // trust ignores that clocks run at different rates
	NoMargin          // trust ignores the margin
	TrustRequested    // trust is computed from the requested TTL, not from the granted one
	ReopenTerm        // a late beat revives an ended term
	IgnoreDeadSession // a keep-alive that answers "dead" is treated as a temporary error
	BeginUntrusted    // a waiter whose session ended begins on a late win
	BeginOnOldRecord  // a term begins on any record that names the session
	ReleaseBeforeStop // the grant is given up before work has returned
	ForgetUnsure      // after a withdrawal an acquire of unknown outcome is ignored
	HungCallBlocks    // a call without an answer delays every timer
	Herd              // all candidates try at every vacancy at once
	ReopenLent        // a machine keeps a lent session alive, closes it, and opens another
	TrustSilentWatch  // a watch that shows nothing is trusted to be complete

	// In the service's campaigns.

	AdoptByNode    // a session is found by its node id, whichever process opened it
	AdoptUnrenewed // a retry gets its existing session without a renewal
	CloseOnDrop    // a call whose client left closes its session, even if a retry leads with it
	WaiterStays    // a call whose client left leaves its session open
	HeldUnreduced  // held_ms is not reduced by the drift
	BeatAfterWin   // a call sends further keep-alives after its client learned that it leads
	RenewAnyTerm   // a renewal does not compare the term
	ResignAnyTerm  // a resignation does not compare the term
	GuardStale     // policies and cordons are checked when a call arrives, not when it grants

	// In the store.

	TokenReset         // the token starts again when a record is released
	TokenNotRaised     // a transfer keeps the token
	KeepAliveRevives   // a keep-alive re-creates a dead session
	AcquireAnyVersion  // an acquire does not compare the version
	AcquireFromLiving  // an acquire does not check whether the holder lives
	ReleaseAnyVersion  // a release does not compare version and holder
	SuccessorUnchecked // a release hands over to a dead or foreign session
	GrantRewound       // the store still grants after a rewind
	BeatRewound        // keep-alives still succeed after a rewind
	ExpireEarly        // sessions die before their TTL
	TornBatch          // a batch that conflicts is granted in part
	WatchForgetsDeath  // a watch does not report the death of a holder's session
	AdoptSession       // a candidate id gets the living session of another process
	EpochIgnored       // tokens continue in the old epoch after it was raised
	SilenceFromSending // an observer counts the silence of a session from when it sent its read
	GapCounted         // an observer counts the time in which nobody could reach the engine
	BeginOnPrepared    // a grant that is only prepared is taken for made
	BeatDeleted        // the beat of a session that ends is deleted, in a store with one key per transaction
	ExpireUncompared   // an observer ends a session without checking whether it was renewed meanwhile

	// In the process and its clock.

	WallClock    // trust is measured on the wall clock
	SuspendStops // trust is measured on a clock that stops during a suspend

	// In the sink.

	NoFence         // every token is accepted
	CheckApart      // the check is separate from the write
	MarkInMemory    // the mark is lost with a restart
	NoSeal          // work begins before the sink was sealed
	StoreRefused    // a refused token raises the mark
	SequenceReserve // a leader hands out numbers that it reserved earlier
	RestoreAsIs     // a sink that was restored serves without its mark being advanced

	// In shards.

	MoveBeforeDrain // a shard is handed over while its work runs
	MoveTwice       // processes that disagree about who should own a shard move it back and forth
	SettleIgnored   // shards are moved to a process that has just begun
	CapIgnored      // a process owns more shards than it may
	StayFixed       // a shard that comes back is moved again as soon as any other
	PinAbsent       // a shard is moved to its pinned candidate, although that does not live

	elsewhere // the simulator does not run what follows: see Elsewhere

	RetryStaleSeal // Lead campaigns again although a refused seal proves that the store lost data
	EqualTokenSeal // a stamp has no session

	// In the proof of death.

	DeathFromSilence   // a silent process counts as dead
	DeathFromFIN       // a process whose connection ends counts as dead
	DeathFromForget    // a process that withdraws its registration counts as dead
	DeathOfNextProcess // the session to end is found by its candidate
	PidReuse           // any user of a connection counts as the process that made it
	HintUnfenced       // a session that is not fenced ends on suspicion

	DeathOfDuplicate    // a session that two processes have registered ends with either
	DeathOfUnregistered // a death ends sessions that were not registered

	end
)

var names = [...]string{
	None:               "none",
	TrustFromReply:     "trust-from-reply",
	TrustFromWin:       "trust-from-win",
	IgnoreTrustEnd:     "ignore-trust-end",
	NoDrift:            "no-drift",
	NoMargin:           "no-margin",
	TrustRequested:     "trust-requested",
	ReopenTerm:         "reopen-term",
	IgnoreDeadSession:  "ignore-dead-session",
	BeginUntrusted:     "begin-untrusted",
	BeginOnOldRecord:   "begin-on-old-record",
	ReleaseBeforeStop:  "release-before-stop",
	ForgetUnsure:       "forget-unsure",
	HungCallBlocks:     "hung-call-blocks",
	Herd:               "herd",
	TrustSilentWatch:   "trust-silent-watch",
	ReopenLent:         "reopen-lent",
	AdoptByNode:        "adopt-by-node",
	AdoptUnrenewed:     "adopt-unrenewed",
	CloseOnDrop:        "close-on-drop",
	WaiterStays:        "waiter-stays",
	HeldUnreduced:      "held-unreduced",
	BeatAfterWin:       "beat-after-win",
	RenewAnyTerm:       "renew-any-term",
	ResignAnyTerm:      "resign-any-term",
	GuardStale:         "guard-stale",
	TokenReset:         "token-reset",
	TokenNotRaised:     "token-not-raised",
	KeepAliveRevives:   "keep-alive-revives",
	AcquireAnyVersion:  "acquire-any-version",
	AcquireFromLiving:  "acquire-from-living",
	ReleaseAnyVersion:  "release-any-version",
	SuccessorUnchecked: "successor-unchecked",
	GrantRewound:       "grant-rewound",
	BeatRewound:        "beat-rewound",
	ExpireEarly:        "expire-early",
	TornBatch:          "torn-batch",
	WatchForgetsDeath:  "watch-forgets-death",
	AdoptSession:       "adopt-session",
	EpochIgnored:       "epoch-ignored",
	SilenceFromSending: "silence-from-sending",
	GapCounted:         "gap-counted",
	BeginOnPrepared:    "begin-on-prepared",
	BeatDeleted:        "beat-deleted",
	ExpireUncompared:   "expire-uncompared",
	WallClock:          "wall-clock",
	SuspendStops:       "suspend-stops",
	NoFence:            "no-fence",
	CheckApart:         "check-apart",
	MarkInMemory:       "mark-in-memory",
	NoSeal:             "no-seal",
	StoreRefused:       "store-refused",
	SequenceReserve:    "sequence-reserve",
	RestoreAsIs:        "restore-as-is",
	RetryStaleSeal:     "retry-stale-seal",
	EqualTokenSeal:     "equal-token-seal",
	DeathFromSilence:   "death-from-silence",
	DeathFromFIN:       "death-from-fin",
	DeathFromForget:    "death-from-forget",
	DeathOfNextProcess: "death-of-next-process",
	PidReuse:           "pid-reuse",
	HintUnfenced:       "hint-unfenced",

	DeathOfDuplicate:    "death-of-duplicate",
	DeathOfUnregistered: "death-of-unregistered",
	MoveBeforeDrain:     "move-before-drain",
	MoveTwice:           "move-twice",
	SettleIgnored:       "settle-ignored",
	CapIgnored:          "cap-ignored",
	StayFixed:           "stay-fixed",
	PinAbsent:           "pin-absent",
}

func (b Bug) String() string { return names[b] }

// All lists every bug that the simulator must catch.
func All() []Bug { return between(None, elsewhere) }

// Elsewhere lists the bugs in code that the simulator does not run. Named tests catch them:
// TestDataLossPlanted in lease, TestPlanted in pulse.
func Elsewhere() []Bug { return between(elsewhere, end) }

func between(after, before Bug) []Bug {
	var all []Bug
	for b := after + 1; b < before; b++ {
		all = append(all, b)
	}
	return all
}
