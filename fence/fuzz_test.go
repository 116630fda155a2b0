package fence

import (
	"context"
	"encoding/json"
	"strconv"
	"testing"
)

// Every parsed token is valid, and String returns the text that was parsed.
func FuzzParseToken(f *testing.F) {
	for _, s := range []string{"", "0", "1", "007", "-1", "1.5", "1e3", " 1", "9007199254740991", "9007199254740992", "18446744073709551616", "١"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		token, err := ParseToken(s)
		if err != nil {
			if token != 0 || len(err.Error()) > 400 {
				t.Fatalf("%q: %d, %v", s, token, err)
			}
			if n, perr := strconv.ParseUint(s, 10, 64); perr == nil && Token(n).Valid() && strconv.FormatUint(n, 10) == s {
				t.Fatalf("%q is a token, and was refused: %v", s, err)
			}
			return
		}
		if !token.Valid() || token.String() != s {
			t.Fatalf("%q was read as %d", s, token)
		}
	})
}

// Every accepted stamp is valid, and survives a round trip through JSON.
func FuzzUnsigned(f *testing.F) {
	for _, s := range []string{
		``, `null`, `{}`, `[]`, `{"deployment":"prod","group":"billing","token":42,"seq":7}`,
		`{"deployment":"prod","group":"billing","token":"42"}`, `{"deployment":"prod","group":"billing","token":1e3}`,
		`{"deployment":"prod","group":"billing","token":1,"seq":9007199254740992}`, `{"deployment":"\ud800","group":"g","token":1}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := Unsigned(context.Background(), raw)
		if err != nil {
			if !refusedAs[*InvalidError](err) || len(err.Error()) > 10*maxRaw {
				t.Fatalf("%q: %v", raw, err)
			}
			return
		}
		if s.Validate() != nil {
			t.Fatalf("%q was believed, and is %+v", raw, s)
		}
		data, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var back Stamp
		if err := json.Unmarshal(data, &back); err != nil || back != s {
			t.Fatalf("%+v is written as %s and read back as %+v, %v", s, data, back, err)
		}
	})
}

// The rule holds for every mark and stamp: an accepted one is valid, not below the mark, of
// the same deployment and group, and no slip. A refusal leaves the mark unchanged.
func FuzzAdmit(f *testing.F) {
	f.Add(uint64(0), uint64(0), "", uint64(1), uint64(1), "d", true)
	f.Add(uint64(7), uint64(1), "d", uint64(7), uint64(1), "d", true)
	f.Add(uint64(7), uint64(1), "d", uint64(7), uint64(1), "e", true)
	f.Add(uint64(8), uint64(0), "", uint64(7), uint64(9), "d", true)
	f.Add(uint64(7), uint64(0), "", uint64(8+MaxJump), uint64(1), "d", true)
	f.Add(uint64(7), uint64(0), "", uint64(NewToken(1, 7)), uint64(1), "d", false)
	f.Add(uint64(MaxToken), uint64(0), "", uint64(MaxToken), MaxSeq, "d", true)
	f.Fuzz(func(t *testing.T, markToken, markSeq uint64, markDigest string, token, seq uint64, digest string, same bool) {
		m := Mark{}
		if Token(markToken).Valid() {
			m = mark(Token(markToken), markSeq, markDigest)
		}
		s := at(Token(token), seq)
		if !same {
			s.Deployment = "staging"
		}
		legal := s.Validate() == nil
		epochs, grants := s.Token.Epoch()-m.Token.Epoch(), int64(s.Token.Counter())-int64(m.Token.Counter())
		plausible := m.Token == 0 || same && s.Token >= m.Token && epochs <= 1 && grants <= MaxJump

		next, err := m.Admit(s)
		if (err == nil) != (legal && plausible) {
			t.Fatalf("%+v on %+v: %v", s, m, err)
		}
		if err != nil && next != m || err == nil && (next.Token != s.Token || next.Deployment != s.Deployment) {
			t.Fatalf("%+v on %+v: the mark is %+v, %v", s, m, next, err)
		}

		strict, verdict, err := m.AdmitStrict(s, digest)
		above := s.Token > m.Token || s.Seq > m.Seq
		retry := m.Token != 0 && s.Token == m.Token && s.Seq == m.Seq && digest == m.Digest
		if (err == nil) != (legal && plausible && s.Seq > 0 && (above || retry)) {
			t.Fatalf("strict %+v %q on %+v: %v", s, digest, m, err)
		}
		switch {
		case err != nil || verdict == Retry:
			if strict != m || verdict == Retry && !retry {
				t.Fatalf("strict %+v %q on %+v: the mark is %+v, verdict %d, %v", s, digest, m, strict, verdict, err)
			}
		case strict.Token != s.Token || strict.Seq != s.Seq || strict.Digest != digest:
			t.Fatalf("strict %+v %q on %+v: the mark is %+v", s, digest, m, strict)
		}

		advanced, err := m.Advance(s)
		if err == nil && (advanced.Token != s.Token || advanced.Token < m.Token) || err != nil && advanced != m {
			t.Fatalf("advance %+v on %+v: the mark is %+v, %v", s, m, advanced, err)
		}
	})
}
