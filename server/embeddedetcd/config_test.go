package embeddedetcd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func membersOf(n int) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("m%d=127.0.0.1:%d", i+1, 7001+i))
	}
	return all
}

// Invalid settings are refused with a ConfigError; costly ones give a notice.
func TestValidate(t *testing.T) {
	files := certificates(t)
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	clustered := func(n int) Config { return Config{Name: "m1", DataDir: "d", Members: membersOf(n)} }
	of := func(members ...string) Config { return Config{Name: "m1", DataDir: "d", Members: members} }
	for _, tt := range []struct {
		name   string
		c      Config
		want   string // part of the error; "": allowed
		notice string // part of a notice
	}{
		{name: "nothing set", notice: "one member alone"},
		{name: "one named", c: of("m1=127.0.0.1:7001")},
		{name: "two", c: clustered(2), want: "members: 2 "},
		{name: "three", c: clustered(3)},
		{name: "four", c: clustered(4), want: "use 3 or 5"},
		{name: "five", c: clustered(5)},
		{name: "six", c: clustered(6), want: "use 5 or 7"},
		{name: "seven", c: clustered(7)},
		{name: "eight", c: clustered(8), want: "use 7 or 9"},
		{name: "nine", c: clustered(9), notice: "9 members"},

		{name: "name", c: Config{Name: "M 1"}, want: `name: "M 1" must be`},
		{name: "name too long", c: Config{Name: strings.Repeat("a", 64)}, want: "1 to 63"},
		{name: "name with =", c: Config{Name: "a=b"}, want: "name:"},
		{name: "not a member", c: Config{Name: "x", DataDir: "d", Members: membersOf(3)}, want: `members: "x"`},
		{name: "member without name", c: of("m1=127.0.0.1:1", "=127.0.0.1:2", "m3=127.0.0.1:3"), want: `"=127.0.0.1:2" must be "name=peer URL"`},
		{name: "member without URL", c: of("m1=127.0.0.1:1", "m2", "m3=127.0.0.1:3"), want: `"m2" must be "name=peer URL"`},
		{name: "empty member", c: of("m1=127.0.0.1:1", "m2=127.0.0.1:2", ""), want: `"" must be "name=peer URL"`},
		{name: "member's name", c: of("m1=127.0.0.1:1", "M2=127.0.0.1:2", "m3=127.0.0.1:3"), want: `the name in "M2=`},
		{name: "name twice", c: of("m1=127.0.0.1:1", "m1=127.0.0.1:2", "m3=127.0.0.1:3"), want: `members: the name "m1"`},
		{name: "address twice", c: of("m1=127.0.0.1:1", "m2=127.0.0.1:1", "m3=127.0.0.1:3"), want: "members: the address 127.0.0.1:1"},
		{name: "port 0 in members", c: of("m1=127.0.0.1:0", "m2=127.0.0.1:2", "m3=127.0.0.1:3"), want: `members: "m1=127.0.0.1:0"`},
		{name: "no directory in a cluster", c: Config{Name: "m1", Members: membersOf(3)}, want: "data directory: "},

		{name: "client URL", c: Config{ClientURL: "ftp://127.0.0.1:1"}, want: "must begin with http"},
		{name: "client path", c: Config{ClientURL: "http://127.0.0.1:1/x"}, want: `client: "http://127.0.0.1:1/x"`},
		{name: "client without port", c: Config{ClientURL: "127.0.0.1"}, want: "must have a port"},
		{name: "client port", c: Config{ClientURL: "127.0.0.1:70000"}, want: "must have a port from 0 to 65535"},
		{name: "client without host", c: Config{ClientURL: ":2379"}, want: "has no host"},
		{name: "client nonsense", c: Config{ClientURL: "http://[::1"}, want: `client: "http://[::1"`},
		{name: "client name", c: Config{ClientURL: "db.example:2379", Insecure: true}, want: "client: http://db.example:2379"},
		{name: "TLS on a socket", c: Config{ClientTLS: files.tls}, want: "client TLS: a unix socket"},
		{name: "socket advertised", c: Config{AdvertiseClientURL: "127.0.0.1:2379"}, want: "advertised client URL: a unix socket"},
		{name: "port without TLS", c: Config{ClientURL: "127.0.0.1:0"}, notice: "every process on this host can depose any leader"},
		{name: "localhost", c: Config{ClientURL: "localhost:0"}},
		{name: "loopback of version 6", c: Config{ClientURL: "[::1]:0"}},

		{name: "open client", c: Config{ClientURL: "192.0.2.1:2379"}, want: "client: other hosts can reach http://192.0.2.1:2379"},
		{name: "open peer", c: Config{PeerURL: "192.0.2.1:2380"}, want: "peer: other hosts can reach http://192.0.2.1:2380"},
		{name: "open member", c: of("m1=192.0.2.1:1", "m2=192.0.2.2:1", "m3=192.0.2.3:1"), want: "peer: other hosts can reach http://192.0.2.1:1"},
		{name: "open and meant", c: Config{ClientURL: "192.0.2.1:2379", Insecure: true}, notice: "without TLS"},
		{name: "everywhere", c: Config{ClientURL: "0.0.0.0:2379", Insecure: true}, want: "listens on every address"},
		{name: "everywhere, advertised", c: Config{ClientURL: "0.0.0.0:2379", AdvertiseClientURL: "192.0.2.1:2379", Insecure: true}},
		{name: "advertised everywhere", c: Config{ClientURL: "127.0.0.1:0", AdvertiseClientURL: "0.0.0.0:2379"}, want: "must be one address"},
		{name: "open with TLS", c: Config{ClientURL: "192.0.2.1:2379", ClientTLS: files.tls}},
		{name: "open without CA", c: Config{ClientURL: "192.0.2.1:2379", ClientTLS: TLS{Cert: files.tls.Cert, Key: files.tls.Key}}, notice: "does not check client certificates"},
		{name: "peer without CA", c: Config{PeerTLS: TLS{Cert: files.tls.Cert, Key: files.tls.Key}}, want: "peer TLS: needs the CA"},
		{name: "https without certificate", c: Config{ClientURL: "https://127.0.0.1:0"}, want: "needs a certificate and key for https"},
		{name: "http with certificate", c: Config{ClientURL: "http://127.0.0.1:0", ClientTLS: files.tls}, want: "must begin with https"},
		{name: "certificate without key", c: Config{ClientTLS: TLS{Cert: files.tls.Cert}}, want: "client TLS: needs a certificate and its key"},
		{name: "missing certificate", c: Config{ClientTLS: TLS{Cert: "none.pem", Key: files.tls.Key}}, want: "none.pem"},
		{name: "swapped", c: Config{ClientTLS: TLS{Cert: files.tls.Key, Key: files.tls.Cert}}, want: "client TLS: certificate"},
		{name: "missing CA", c: Config{ClientTLS: TLS{Cert: files.tls.Cert, Key: files.tls.Key, CA: "none.pem"}}, want: "none.pem"},
		{name: "empty CA", c: Config{ClientTLS: TLS{Cert: files.tls.Cert, Key: files.tls.Key, CA: empty}}, want: empty},

		{name: "tick", c: Config{Tick: -time.Second}, want: "tick: -1s must be"},
		{name: "tick in microseconds", c: Config{Tick: 1500 * time.Microsecond}, want: "tick: 1.5ms must be a whole number of milliseconds"},
		{name: "election", c: Config{Tick: time.Second, Election: 4 * time.Second}, want: "election: 4s must be at least 5 × tick = 5 × 1s"},
		{name: "long election", c: Config{Election: time.Minute}, want: "at most 50s"},
		{name: "quota", c: Config{Quota: 1}, want: "quota: 1 bytes"},
		{name: "negative quota", c: Config{Quota: -1}, want: "quota: -1 bytes"},
		{name: "compaction", c: Config{AutoCompaction: time.Second}, want: "auto compaction: 1s must be at least 1m0s"},
		{name: "ready timeout", c: Config{ReadyTimeout: -1}, want: "ready timeout"},
		{name: "stop timeout", c: Config{StopTimeout: -1}, want: "stop timeout"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := tt.c.plan()
			var ce *ConfigError
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want != "" && (!errors.As(err, &ce) || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("error %v, want one with %q", err, tt.want)
			case tt.want != "":
				if _, err := Start(t.Context(), tt.c); !errors.As(err, &ce) {
					t.Errorf("Start does not refuse it: %v", err)
				}
			}
			if tt.notice != "" && (p == nil || !strings.Contains(strings.Join(p.notices, "\n"), tt.notice)) {
				t.Errorf("no notice with %q: %+v", tt.notice, p)
			}
			if tt.name == "seven" && len(p.notices) != 1 {
				t.Errorf("notices for seven members: %q", p.notices)
			}
		})
	}
}
