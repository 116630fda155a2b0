package ledger_test

import (
	"log/slog"
	"testing"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/reference/ledger"
)

func at(token fence.Token) fence.Stamp { return atSeq(token, 0) }

func atSeq(token fence.Token, seq uint64) fence.Stamp {
	return fence.Stamp{Deployment: "prod", Group: "billing", Token: token, Seq: seq}
}

func open(t testing.TB, cfg ledger.Config) *ledger.Ledger {
	t.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	l, err := ledger.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}
