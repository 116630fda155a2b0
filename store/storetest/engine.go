package storetest

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tenurehq/tenure/internal/suite"
	"github.com/tenurehq/tenure/store"
)

// Engine is what is tested.
type Engine struct {
	// Open connects another client to the same store, until the test ends.
	Open func(t *testing.T) store.Store
	// TTL is the shortest that works reliably: checks of expiry wait this long.
	TTL time.Duration
	// Settle is how long after its TTL a dead session may still be reported as alive.
	Settle time.Duration
	// Restart restarts the engine without loss of data. Nil: the engine cannot be restarted.
	Restart func(t *testing.T)
	// Rewind makes a backup and returns a function that restores it. Nil: not possible.
	Rewind func(t *testing.T) (restore func())
	// Broken are the promises that the engine cannot keep.
	Broken []Promise
	// Patience is how long a check waits for an expected event. Default TTL + Settle + 15 s.
	Patience time.Duration
	// Groups is how many groups one session holds in OneCloseVacatesAll, for an engine that takes
	// minutes for as many as the default: 10,000, or 1,000 with -short.
	Groups int
}

// Promise is what a Store promises, and the name of the subtest that checks it.
type Promise string

// The promises.
const (
	SessionAsOpened    Promise = "a session is what was asked for"
	SessionIDsUnique   Promise = "session ids are unique"
	OpenRetried        Promise = "an attempt has one session, however often it is opened"
	SessionRead        Promise = "a session can be read while it lives"
	BeatShowsRecords   Promise = "a keep-alive shows the records that are asked for"
	CloseCompares      Promise = "a close from old records closes nothing"
	ReleaseBatch       Promise = "a batch is released as a whole or not at all"
	TokenFromStore     Promise = "the next token follows the one in the store"
	WatchSessions      Promise = "a watch announces sessions that begin and end"
	WatchLinearizable  Promise = "a watch begins with everything acknowledged before"
	SuspectedIsFenced  Promise = "only a fenced session ends on suspicion"
	DeathIsFinal       Promise = "no call brings a dead session back"
	DeadNeverLeads     Promise = "a waiter whose session died never leads"
	TTLKept            Promise = "a session dies after its TTL, not before"
	LivingHolderKeeps  Promise = "nobody takes a group from a living session"
	TokensIncrease     Promise = "tokens strictly increase and belong to one session"
	TokensSurvive      Promise = "tokens survive release, close, expiry and another client"
	TokensSurviveStart Promise = "records survive a restart of the engine"
	RecordsTellTerms   Promise = "a record tells its newest terms"
	BatchAllOrNothing  Promise = "a batch is granted as a whole or not at all"
	ConflictShows      Promise = "a conflict shows what stood in the way"
	TransferChecked    Promise = "a transfer goes to a successor that can take it, or nowhere"
	LateCopiesHarmless Promise = "a late copy never touches what came after"
	LostRepliesResolve Promise = "a lost call and a lost reply are told apart by a read"
	CancelNoOrphan     Promise = "a cancelled call leaves no orphan"
	ContextObeyed      Promise = "every call obeys its context"
	UnknownNotVacant   Promise = "a failing read is never taken for a vacancy"
	ReadsLinearizable  Promise = "a read sees what another client was told"
	ArgumentsRefused   Promise = "bad arguments are refused, without effect"
	WatchSnapshot      Promise = "a watch begins with what is, says so, and goes on"
	WatchMissesNoTerm  Promise = "a slow watch misses no term"
	WatchVacancy       Promise = "a watch announces every vacancy"
	WatchTransfer      Promise = "a watch announces no vacancy in a transfer"
	RequestsArrive     Promise = "requests reach their owner, once, and are answered"
	RequestsEnd        Promise = "requests expire and are bounded"
	ListsInOrder       Promise = "listings come in order, in pages, within their scope"
	HistoryReaches     Promise = "the history reaches back as far as promised"
	AttributesCompared Promise = "attributes change from the version seen"
	AttributesRemoved  Promise = "removed attributes that are no rules leave nothing behind"
	AttributesListed   Promise = "attributes are listed by prefix, in order, in pages"
	RulesCompared      Promise = "a grant can depend on the version of the rules"
	NoGrantAgainstRule Promise = "nothing is granted after an acknowledged cordon"
	TokensOutliveNames Promise = "tokens go on after the record of a name was removed"
	RetireCompares     Promise = "a record is removed only from the version seen, and while vacant"
	OneWinner          Promise = "a thousand contenders have one winner per version"
	OneCloseVacatesAll Promise = "one close vacates ten thousand groups"
	EpochRaised        Promise = "a raised epoch lifts every later token"
	SuspectStops       Promise = "a reported loss of data stops all grants until the epoch is raised"
	RewindRefused      Promise = "a rewound engine grants nothing until the epoch is raised"
)

type promise struct {
	name  Promise
	check func(*check)
	// alone: it affects other checks: it restarts, restores or loads the engine, or raises the epoch.
	alone bool
	needs string // what not every engine can do
}

func promises() []promise {
	return []promise{
		{name: SessionAsOpened, check: sessionAsOpened},
		{name: SuspectedIsFenced, check: suspectedIsFenced},
		{name: SessionIDsUnique, check: sessionIDsUnique},
		{name: OpenRetried, check: openRetried},
		{name: SessionRead, check: sessionRead},
		{name: BeatShowsRecords, check: beatShowsRecords},
		{name: CloseCompares, check: closeCompares},
		{name: ReleaseBatch, check: releaseBatch},
		{name: TokenFromStore, check: tokenFromStore},
		{name: WatchSessions, check: watchSessions},
		{name: WatchLinearizable, check: watchLinearizable},
		{name: DeathIsFinal, check: deathIsFinal},
		{name: DeadNeverLeads, check: deadNeverLeads},
		{name: TTLKept, check: ttlKept},
		{name: LivingHolderKeeps, check: livingHolderKeeps},
		{name: TokensIncrease, check: tokensIncrease},
		{name: TokensSurvive, check: tokensSurvive},
		{name: RecordsTellTerms, check: recordsTellTerms},
		{name: BatchAllOrNothing, check: batchAllOrNothing},
		{name: ConflictShows, check: conflictShows},
		{name: TransferChecked, check: transferChecked},
		{name: LateCopiesHarmless, check: lateCopiesHarmless},
		{name: LostRepliesResolve, check: lostRepliesResolve},
		{name: CancelNoOrphan, check: cancelNoOrphan},
		{name: ContextObeyed, check: contextObeyed},
		{name: UnknownNotVacant, check: unknownNotVacant},
		{name: ReadsLinearizable, check: readsLinearizable},
		{name: ArgumentsRefused, check: argumentsRefused},
		{name: WatchSnapshot, check: watchSnapshot},
		{name: WatchMissesNoTerm, check: watchMissesNoTerm},
		{name: WatchVacancy, check: watchVacancy},
		{name: WatchTransfer, check: watchTransfer},
		{name: RequestsArrive, check: requestsArrive},
		{name: RequestsEnd, check: requestsEnd},
		{name: ListsInOrder, check: listsInOrder},
		{name: HistoryReaches, check: historyReaches},
		{name: AttributesCompared, check: attributesCompared},
		{name: AttributesRemoved, check: attributesRemoved},
		{name: AttributesListed, check: attributesListed},
		{name: RulesCompared, check: rulesCompared},
		{name: NoGrantAgainstRule, check: noGrantAgainstRules},
		{name: TokensOutliveNames, check: tokensOutliveNames},
		{name: RetireCompares, check: retireCompares},
		{name: OneWinner, check: oneWinner},
		{name: EpochRaised, check: epochRaised, alone: true},
		{name: SuspectStops, check: suspectStops, alone: true},
		{name: TokensSurviveStart, check: tokensSurviveRestart, alone: true, needs: "Restart"},
		{name: RewindRefused, check: rewindRefused, alone: true, needs: "Rewind"},
		{name: OneCloseVacatesAll, check: oneCloseVacatesAll, alone: true}, // last: its records stay
	}
}

func (p promise) missing(e Engine) string {
	if p.needs == "Restart" && e.Restart == nil || p.needs == "Rewind" && e.Rewind == nil {
		return p.needs
	}
	return ""
}

// Promises lists every promise.
func Promises() []Promise {
	var all []Promise
	for _, p := range promises() {
		all = append(all, p.name)
	}
	return all
}

// Run checks every promise, one subtest each.
func Run(t *testing.T, e Engine) {
	run := func(t *testing.T, p promise) {
		if lever := p.missing(e); lever != "" {
			t.Skipf("not checked: the engine has no %s", lever)
		}
		said, ok := suite.Verdict("the engine", observe(t, e, p), slices.Contains(e.Broken, p.name))
		if said != "" {
			t.Log(said)
		}
		if !ok {
			t.Fail()
		}
	}
	t.Run("together", func(t *testing.T) {
		for _, p := range promises() {
			if !p.alone {
				t.Run(string(p.name), func(t *testing.T) {
					t.Parallel()
					run(t, p)
				})
			}
		}
	})
	t.Run("alone", func(t *testing.T) {
		for _, p := range promises() {
			if p.alone {
				t.Run(string(p.name), func(t *testing.T) { run(t, p) })
			}
		}
	})
}

// Check checks the promises, all of them if none is named, without failing t,
// and returns what it saw of each that was broken. Engines use Run; Check is for
// tests of the suite itself.
func Check(t *testing.T, e Engine, only ...Promise) map[Promise]error {
	var mu sync.Mutex
	broken := make(map[Promise]error)
	note := func(p promise) {
		if err := observe(t, e, p); err != nil {
			mu.Lock()
			defer mu.Unlock()
			broken[p.name] = err
		}
	}
	chosen := slices.DeleteFunc(promises(), func(p promise) bool {
		return len(only) > 0 && !slices.Contains(only, p.name) || p.missing(e) != ""
	})
	var together sync.WaitGroup
	for _, p := range chosen {
		if !p.alone {
			together.Go(func() { note(p) })
		}
	}
	together.Wait()
	for _, p := range chosen {
		if p.alone {
			note(p)
		}
	}
	return broken
}
