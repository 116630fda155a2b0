package fence

// MaxJump is how far a token may be above the mark within an epoch. A larger jump is refused
// as a slip.
const MaxJump = 1_000_000

// Mark is what a sink stores in the same transaction as the write that it admits: the highest
// token, and its owner. The zero Mark has seen no stamp.
type Mark struct {
	Deployment string `json:"deployment"`
	Group      string `json:"group"`
	Token      Token  `json:"token"`
	Seq        uint64 `json:"seq,omitempty"`     // strict sinks: of the last write
	Digest     string `json:"digest,omitempty"`  // strict sinks: of the last write
	Session    string `json:"session,omitempty"` // session that Token was granted to; empty: unknown
}

// Admit is the rule: accept if and only if the stamp's token is not below the
// mark, and an equal token is not another session's. It returns the mark to store
// with the write. On an error the mark is unchanged and nothing may be written: a
// refused token is never stored, so one slip cannot lock every later leader out.
//
// A mark without a session, from an older version, takes that of the first stamp
// with an equal token.
func (m Mark) Admit(s Stamp) (Mark, error) {
	if err := m.compare(s); err != nil {
		return m, err
	}
	if s.Token > m.Token {
		// A new leader's writes are numbered from 1 again.
		m.Seq, m.Digest = 0, ""
	}
	m.Deployment, m.Group, m.Token, m.Session = s.Deployment, s.Group, s.Token, m.session(s)
	return m, nil
}

// Verdict says what a strict sink does with an admitted write.
type Verdict uint8

const (
	// Apply: the write is new. Make it, and store the mark with it.
	Apply Verdict = iota + 1
	// Retry: the write was made before. Answer as then, and change nothing.
	Retry
)

// AdmitStrict is the rule for a sink with one ordered writer: accept if and only
// if (token, seq) is above the last. An equal stamp with an equal digest is a
// retry; with another digest two processes write under one token, and the
// second is refused as a clone. Seq counts from 1; 0 is the seal.
func (m Mark) AdmitStrict(s Stamp, digest string) (Mark, Verdict, error) {
	if err := m.compare(s); err != nil {
		return m, 0, err
	}
	if s.Seq == 0 {
		return m, 0, &InvalidError{Field: "seq", Value: "0", Rule: "strict writes count from 1"}
	}
	if s.Token == m.Token {
		switch {
		case s.Seq == m.Seq && digest == m.Digest:
			return m, Retry, nil
		case s.Seq == m.Seq:
			return m, 0, &CloneError{Stamp: s, Digest: digest, Mark: m}
		case s.Seq < m.Seq:
			return m, 0, &StaleError{Stamp: s, Mark: m}
		}
	}
	return Mark{Deployment: s.Deployment, Group: s.Group, Token: s.Token, Seq: s.Seq, Digest: digest, Session: m.session(s)}, Apply, nil
}

// Advance raises a mark to any valid token, past the slip rule. It never lowers it.
func (m Mark) Advance(s Stamp) (Mark, error) {
	if err := s.Validate(); err != nil {
		return m, err
	}
	if m.foreign(s) {
		return m, &ForeignError{Stamp: s, Mark: m}
	}
	if s.Token < m.Token {
		return m, &StaleError{Stamp: s, Mark: m}
	}
	if s.Token > m.Token {
		m = Mark{Deployment: s.Deployment, Group: s.Group, Token: s.Token, Session: s.Session}
	}
	return m, nil
}

func (m Mark) foreign(s Stamp) bool {
	return m.Token != 0 && (m.Deployment != s.Deployment || m.Group != s.Group)
}

// session returns the session that the mark keeps after it has admitted the stamp. A stamp without
// a session keeps the one that the mark has for the same token.
func (m Mark) session(s Stamp) string {
	if s.Token == m.Token && s.Session == "" {
		return m.Session
	}
	return s.Session
}

// ofOtherSession reports whether the stamp's token was granted to another session.
func (m Mark) ofOtherSession(s Stamp) bool {
	return s.Token == m.Token && s.Session != "" && m.Session != "" && s.Session != m.Session
}

func (m Mark) compare(s Stamp) error {
	if err := s.Validate(); err != nil {
		return err
	}
	switch {
	case m.Token == 0: // first contact
		return nil
	case m.foreign(s):
		return &ForeignError{Stamp: s, Mark: m}
	case s.Token < m.Token:
		return &StaleError{Stamp: s, Mark: m}
	case m.ofOtherSession(s):
		return &CloneError{Stamp: s, Mark: m}
	case slip(m.Token, s.Token):
		return &SlipError{Stamp: s, Mark: m}
	}
	return nil
}

// slip reports a jump that no election makes. The counter continues when the epoch rises, so
// the jump is bounded across epochs too.
func slip(mark, token Token) bool {
	if token.Epoch() > mark.Epoch()+1 {
		return true
	}
	if token.Epoch() == mark.Epoch() {
		return token.Counter()-mark.Counter() > MaxJump
	}
	return token.Counter() > mark.Counter() && token.Counter()-mark.Counter() > MaxJump
}
