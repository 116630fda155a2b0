package fence

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

func mark(token Token, seq uint64, digest string) Mark {
	return Mark{Deployment: "prod", Group: "billing", Token: token, Seq: seq, Digest: digest}
}

// The rule, case by case: accept if and only if the token is not below the mark, is not a
// slip, and has the sink's deployment and group. A refusal leaves the mark unchanged.
func TestAdmit(t *testing.T) {
	for _, tt := range []struct {
		name  string
		mark  Mark
		stamp Stamp
		want  Mark // when accepted
		err   string
	}{
		{"first contact", Mark{}, at(7, 0), mark(7, 0, ""), ""},
		{"first contact, however high", Mark{}, at(MaxToken, 0), mark(MaxToken, 0, ""), ""},
		{"same leader", mark(7, 0, ""), at(7, 0), mark(7, 0, ""), ""},
		{"same leader, strict before", mark(7, 3, "d"), at(7, 0), mark(7, 3, "d"), ""},
		{"next leader", mark(7, 0, ""), at(8, 0), mark(8, 0, ""), ""},
		{"next leader counts anew", mark(7, 3, "d"), at(8, 0), mark(8, 0, ""), ""},
		{"its seq is not the mark's", mark(7, 3, "d"), at(8, 5), mark(8, 0, ""), ""},
		{"furthest jump", mark(7, 0, ""), at(7+MaxJump, 0), mark(7+MaxJump, 0, ""), ""},
		{"next epoch", mark(7, 0, ""), at(NewToken(1, 8), 0), mark(NewToken(1, 8), 0, ""), ""},
		{"next epoch, after a restore took the counter back", mark(NewToken(1, 5_000_000), 0, ""), at(NewToken(2, 3), 0), mark(NewToken(2, 3), 0, ""), ""},
		{"next epoch, furthest jump", mark(7, 0, ""), at(NewToken(1, 7+MaxJump), 0), mark(NewToken(1, 7+MaxJump), 0, ""), ""},
		{"last of all", mark(MaxToken-1, 0, ""), at(MaxToken, 0), mark(MaxToken, 0, ""), ""},

		{"stale", mark(8, 0, ""), at(7, 0), Mark{},
			`fence: stale write refused: prod/billing token 7, but the sink has seen token 8: stop, another leads`},
		{"stale by an epoch", mark(NewToken(1, 3), 0, ""), at(500, 0), Mark{},
			`fence: stale write refused: prod/billing token 500, but the sink has seen token 1099511627779: stop, another leads`},
		{"slip", mark(7, 0, ""), at(8+MaxJump, 0), Mark{},
			`fence: implausible token refused: prod/billing token 1000008, but the sink is at 7: more than 1000000 grants or one epoch ahead; if it is right, advance the mark by hand`},
		{"slip to the end", mark(7, 0, ""), at(MaxToken, 0), Mark{},
			`fence: implausible token refused: prod/billing token 9007199254740991, but the sink is at 7: more than 1000000 grants or one epoch ahead; if it is right, advance the mark by hand`},
		{"slip of two epochs", mark(7, 0, ""), at(NewToken(2, 8), 0), Mark{},
			`fence: implausible token refused: prod/billing token 2199023255560, but the sink is at 7: more than 1000000 grants or one epoch ahead; if it is right, advance the mark by hand`},
		{"slip within the next epoch", mark(7, 0, ""), at(NewToken(1, 8+MaxJump), 0), Mark{},
			`fence: implausible token refused: prod/billing token 1099512627784, but the sink is at 7: more than 1000000 grants or one epoch ahead; if it is right, advance the mark by hand`},
		{"other deployment", mark(7, 0, ""), Stamp{Deployment: "staging", Group: "billing", Token: 8}, Mark{},
			`fence: foreign write refused: staging/billing token 8, but the sink belongs to prod/billing: two fleets must not share a sink`},
		{"other group", mark(7, 0, ""), Stamp{Deployment: "prod", Group: "mail", Token: 8}, Mark{},
			`fence: foreign write refused: prod/mail token 8, but the sink belongs to prod/billing: two fleets must not share a sink`},
		{"foreign and stale is foreign", mark(7, 0, ""), Stamp{Deployment: "staging", Group: "billing", Token: 6}, Mark{},
			`fence: foreign write refused: staging/billing token 6, but the sink belongs to prod/billing: two fleets must not share a sink`},
		{"no token", mark(7, 0, ""), at(0, 0), Mark{}, `fence: invalid token "0": from 1 to 2^53-1`},
		{"no token at first contact", Mark{}, at(0, 0), Mark{}, `fence: invalid token "0": from 1 to 2^53-1`},
		{"nobody's", Mark{}, Stamp{Token: 1}, Mark{}, `fence: invalid deployment: must not be empty`},
	} {
		got, err := tt.mark.Admit(tt.stamp)
		check(t, tt.name, tt.mark, got, tt.want, err, tt.err)
	}
}

// check compares the outcome of a rule; on an error the mark must be unchanged.
func check(t *testing.T, name string, before, got, want Mark, err error, wantErr string) {
	t.Helper()
	if wantErr != "" {
		want = before
	}
	if got != want || message(err) != wantErr {
		t.Errorf("%s:\n got %+v, %v\nwant %+v, %s", name, got, err, want, wantErr)
	}
}

// The strict rule, case by case: accept if and only if (token, seq) is above the last. The
// digest distinguishes a retry from a clone.
func TestAdmitStrict(t *testing.T) {
	for _, tt := range []struct {
		name    string
		mark    Mark
		stamp   Stamp
		digest  string
		want    Mark
		verdict Verdict
		err     string
	}{
		{"first contact", Mark{}, at(7, 1), "a", mark(7, 1, "a"), Apply, ""},
		{"first contact in the middle", Mark{}, at(7, 9), "a", mark(7, 9, "a"), Apply, ""},
		{"next write", mark(7, 1, "a"), at(7, 2), "b", mark(7, 2, "b"), Apply, ""},
		{"a gap is allowed", mark(7, 1, "a"), at(7, 5), "b", mark(7, 5, "b"), Apply, ""},
		{"same content, next write", mark(7, 1, "a"), at(7, 2), "a", mark(7, 2, "a"), Apply, ""},
		{"next leader counts from 1", mark(7, 9, "a"), at(8, 1), "b", mark(8, 1, "b"), Apply, ""},
		{"next leader, same stamp but for the token", mark(7, 9, "a"), at(8, 9), "a", mark(8, 9, "a"), Apply, ""},
		{"after the seal", mark(7, 0, ""), at(7, 1), "", mark(7, 1, ""), Apply, ""},
		{"retry", mark(7, 1, "a"), at(7, 1), "a", mark(7, 1, "a"), Retry, ""},
		{"retry without a digest", mark(7, 1, ""), at(7, 1), "", mark(7, 1, ""), Retry, ""},

		{"clone", mark(7, 1, "a"), at(7, 1), "b", Mark{}, 0,
			`fence: clone refused: prod/billing token 7 seq 1 was already written with digest "a", now comes "b": two processes write under one token`},
		{"out of order", mark(7, 3, "a"), at(7, 2), "a", Mark{}, 0,
			`fence: stale write refused: prod/billing token 7 seq 2, but seq 3 was already written: writes must come in order`},
		{"stale", mark(8, 1, "a"), at(7, 9), "b", Mark{}, 0,
			`fence: stale write refused: prod/billing token 7 seq 9, but the sink has seen token 8: stop, another leads`},
		{"stale, though it was once a retry", mark(8, 0, ""), at(7, 1), "a", Mark{}, 0,
			`fence: stale write refused: prod/billing token 7 seq 1, but the sink has seen token 8: stop, another leads`},
		{"not counted", mark(7, 1, "a"), at(7, 0), "b", Mark{}, 0, `fence: invalid seq "0": strict writes count from 1`},
		{"not counted, next leader", mark(7, 1, "a"), at(8, 0), "b", Mark{}, 0, `fence: invalid seq "0": strict writes count from 1`},
		{"counted too far", mark(7, 1, "a"), at(7, MaxSeq+1), "b", Mark{}, 0, `fence: invalid seq "9007199254740992": at most 2^53-1`},
		{"slip", mark(7, 1, "a"), at(8+MaxJump, 1), "b", Mark{}, 0,
			`fence: implausible token refused: prod/billing token 1000008 seq 1, but the sink is at 7: more than 1000000 grants or one epoch ahead; if it is right, advance the mark by hand`},
		{"foreign", mark(7, 1, "a"), Stamp{Deployment: "prod", Group: "mail", Token: 7, Seq: 2}, "b", Mark{}, 0,
			`fence: foreign write refused: prod/mail token 7 seq 2, but the sink belongs to prod/billing: two fleets must not share a sink`},
	} {
		got, verdict, err := tt.mark.AdmitStrict(tt.stamp, tt.digest)
		check(t, tt.name, tt.mark, got, tt.want, err, tt.err)
		if verdict != tt.verdict {
			t.Errorf("%s: verdict %d, want %d", tt.name, verdict, tt.verdict)
		}
	}
}

// A long digest is shortened in an error.
func TestCloneErrorIsShort(t *testing.T) {
	long := string(make([]byte, 1<<20))
	_, _, err := mark(7, 1, long).AdmitStrict(at(7, 1), long+"x")
	if !refusedAs[*CloneError](err) || len(err.Error()) > 1000 {
		t.Errorf("%.100s: %d bytes", message(err), len(message(err)))
	}
}

// An operator can raise a mark to any token, and never lower it.
func TestAdvance(t *testing.T) {
	for _, tt := range []struct {
		name  string
		mark  Mark
		stamp Stamp
		want  Mark
		err   string
	}{
		{"new sink", Mark{}, at(7, 0), mark(7, 0, ""), ""},
		{"past a slip", mark(7, 3, "a"), at(5_000_000, 0), mark(5_000_000, 0, ""), ""},
		{"by epochs", mark(7, 3, "a"), at(NewToken(9, 1), 0), mark(NewToken(9, 1), 0, ""), ""},
		{"to where it is", mark(7, 3, "a"), at(7, 0), mark(7, 3, "a"), ""},
		{"down", mark(7, 3, "a"), at(6, 0), Mark{}, `fence: stale write refused: prod/billing token 6, but the sink has seen token 7: stop, another leads`},
		{"for another", mark(7, 3, "a"), Stamp{Deployment: "prod", Group: "mail", Token: 9}, Mark{},
			`fence: foreign write refused: prod/mail token 9, but the sink belongs to prod/billing: two fleets must not share a sink`},
		{"to nowhere", mark(7, 3, "a"), at(MaxToken+1, 0), Mark{}, `fence: invalid token "9007199254740992": from 1 to 2^53-1`},
	} {
		got, err := tt.mark.Advance(tt.stamp)
		check(t, tt.name, tt.mark, got, tt.want, err, tt.err)
	}
}

// Every refusal is ErrRefused, and its type carries what was compared.
func TestRefusals(t *testing.T) {
	m := mark(7, 2, "a")
	for name, err := range map[string]error{
		"stale":   second(m.Admit(at(6, 0))),
		"slip":    second(m.Admit(at(MaxToken, 0))),
		"foreign": second(m.Admit(Stamp{Deployment: "x", Group: "y", Token: 7})),
		"invalid": second(m.Admit(Stamp{})),
		"clone":   third(m.AdmitStrict(at(7, 2), "b")),
	} {
		ok := false
		switch name {
		case "stale":
			ok = refusedAs[*StaleError](err)
		case "slip":
			ok = refusedAs[*SlipError](err)
		case "foreign":
			ok = refusedAs[*ForeignError](err)
		case "invalid":
			ok = refusedAs[*InvalidError](err)
		case "clone":
			ok = refusedAs[*CloneError](err)
		}
		if !ok {
			t.Errorf("%s: %#v", name, err)
		}
	}
}

func second[A any](_ A, err error) error        { return err }
func third[A, B any](_ A, _ B, err error) error { return err }

// world makes valid stamps, and all kinds that the rule must refuse.
type world struct{ *rand.Rand }

func (w world) stamp(m Mark) Stamp {
	s := at(m.Token, w.Uint64N(4))
	switch w.IntN(12) {
	case 0, 1, 2: // the same leader
		s.Seq = m.Seq + w.Uint64N(3)
	case 3, 4: // a later one
		s.Token += Token(1 + w.Uint64N(3))
	case 5: // an older one
		s.Token -= min(s.Token, Token(1+w.Uint64N(5)))
	case 6: // about the largest jump
		s.Token += MaxJump - 2 + Token(w.Uint64N(5))
	case 7: // about one epoch
		s.Token = NewToken(m.Token.Epoch()+w.Uint64N(4), m.Token.Counter()+w.Uint64N(3)*MaxJump)
	case 8: // anything
		s.Token = Token(w.Uint64())
	case 9: // anything below the limit
		s.Token = Token(w.Uint64N(uint64(MaxToken)))
	case 10:
		s.Group = "mail"
	case 11:
		s.Deployment, s.Seq = "", MaxSeq+w.Uint64N(2)
	}
	return s
}

// honest returns the stamp of the next elected leader.
func honest(t *testing.T, m Mark) Stamp {
	t.Helper()
	next, err := m.Token.Next(m.Token.Epoch())
	if err != nil {
		t.Fatal(err)
	}
	return at(next, 1)
}

// G2: the mark of a sink never goes down, a refused stamp never changes it, and the next
// elected leader can write.
func TestMarkNeverFalls(t *testing.T) {
	for seed := range uint64(200) {
		w := world{rand.New(rand.NewPCG(seed, 0))}
		m := mark(NewToken(w.Uint64N(3), 1+w.Uint64N(2*MaxJump)), 0, "")
		refused := 0
		for i := range 200 {
			before, s, digest := m, w.stamp(m), fmt.Sprint(w.IntN(3))
			var err error
			var verdict Verdict
			strict := w.IntN(2) == 0
			if strict {
				m, verdict, err = m.AdmitStrict(s, digest)
			} else {
				m, err = m.Admit(s)
			}
			say := func(what string) {
				t.Fatalf("seed %d, step %d: %s: %+v on %+v (strict %v) gave %+v, %v", seed, i, what, s, before, strict, m, err)
			}
			switch {
			case err != nil && m != before:
				say("a refused stamp changed the mark")
			case err != nil && verdict != 0:
				say("refused, with a verdict")
			case m.Token < before.Token:
				say("the mark went down")
			case m.Token == before.Token && m.Seq < before.Seq:
				say("the mark's seq went down")
			case err == nil && m.Token != s.Token:
				say("the mark is not the token that was accepted")
			case err == nil && strict && verdict == Apply && m.Token == before.Token && m.Seq <= before.Seq:
				say("applied out of order")
			case err == nil && strict && verdict == Retry && (m != before || m.Seq != s.Seq || m.Digest != digest):
				say("a retry of something else")
			case err == nil && s.Validate() != nil:
				say("accepted an invalid stamp")
			}
			if err == nil {
				continue
			}
			refused++
			if _, err := m.Admit(honest(t, m)); err != nil {
				say("the next leader is locked out: " + err.Error())
			}
			if _, _, err := m.AdmitStrict(honest(t, m), "h"); err != nil {
				say("the next leader is locked out of the strict sink: " + err.Error())
			}
		}
		if refused < 20 || refused > 180 {
			t.Fatalf("seed %d: %d of 200 refused: this test sees one side only", seed, refused)
		}
	}
}

// A strict sink applies each (token, seq) once and in order, in whatever order the writes of
// several leaders, their retries and stale copies arrive.
func TestStrictOrder(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		type write struct {
			stamp  Stamp
			digest string
		}
		var sent []write
		var applied []Stamp
		answers := map[Stamp]string{}
		var m Mark
		token, seq := Token(1), uint64(0)
		for range 300 {
			if random.IntN(20) == 0 {
				token, seq = token+1, 0
			}
			w := write{}
			if len(sent) > 0 && random.IntN(3) == 0 {
				w = sent[random.IntN(len(sent))] // a retry
			} else {
				seq++
				w = write{at(token, seq), fmt.Sprint(token, seq)}
				sent = append(sent, w)
			}
			next, verdict, err := m.AdmitStrict(w.stamp, w.digest)
			if err != nil {
				continue
			}
			m = next
			switch verdict {
			case Apply:
				applied = append(applied, w.stamp)
				answers[w.stamp] = w.digest
			case Retry:
				if answers[w.stamp] != w.digest {
					t.Fatalf("seed %d: %v taken for a retry, but it was never applied", seed, w.stamp)
				}
			default:
				t.Fatalf("seed %d: accepted with verdict %d", seed, verdict)
			}
		}
		for i := 1; i < len(applied); i++ {
			a, b := applied[i-1], applied[i]
			if a.Token > b.Token || a.Token == b.Token && a.Seq >= b.Seq {
				t.Fatalf("seed %d: %v applied after %v", seed, b, a)
			}
		}
		if len(applied) < 100 {
			t.Fatalf("seed %d: only %d applied: this test sees nothing", seed, len(applied))
		}
	}
}

// An equal token is accepted from its own session, and from a stamp without a session. A mark
// without a session takes the first one.
func TestSession(t *testing.T) {
	of := func(token Token, session string) Stamp {
		return Stamp{Deployment: "prod", Group: "billing", Token: token, Session: session}
	}
	for _, tt := range []struct {
		name  string
		mark  string // of token 7
		stamp Stamp
		after string
		clone bool
	}{
		{"the same session", "a", of(7, "a"), "a", false},
		{"another session", "a", of(7, "b"), "a", true},
		{"a stamp of an older version", "a", of(7, ""), "a", false},
		{"a mark of an older version", "", of(7, "b"), "b", false},
		{"neither says", "", of(7, ""), "", false},
		{"a later token of another session", "a", of(8, "b"), "b", false},
		{"a later token of the same session", "a", of(8, "a"), "a", false},
		{"a later token of an older version", "a", of(8, ""), "", false},
	} {
		m := Mark{Deployment: "prod", Group: "billing", Token: 7, Session: tt.mark}
		next, err := m.Admit(tt.stamp)
		if refusedAs[*CloneError](err) != tt.clone || next.Session != tt.after {
			t.Errorf("%s: the session is %q, %v", tt.name, next.Session, err)
		}
		tt.stamp.Seq = 1
		strict, _, err := m.AdmitStrict(tt.stamp, "d")
		if refusedAs[*CloneError](err) != tt.clone || strict.Session != tt.after {
			t.Errorf("%s, strict: the session is %q, %v", tt.name, strict.Session, err)
		}
		if _, err := m.Advance(tt.stamp); err != nil {
			t.Errorf("%s: an operator's advance: %v", tt.name, err)
		}
	}
	if SessionDigest("a") == SessionDigest("b") || of(7, SessionDigest("a")).Validate() != nil {
		t.Errorf("sessions %q and %q", SessionDigest("a"), SessionDigest("b"))
	}
}
