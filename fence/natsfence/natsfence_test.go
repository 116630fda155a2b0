package natsfence_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/fencetest"
	"github.com/tenurehq/tenure/fence/natsfence"
)

var (
	_ fence.Sealer     = (*natsfence.Fence)(nil)
	_ natsfence.Client = jetstream.JetStream(nil)
)

// contract starts a server in this process on first use. A child process never uses it.
type contract struct {
	t    testing.TB
	once sync.Once
	s    *server.Server
	opts server.Options
}

func (k *contract) url() string {
	k.once.Do(func() {
		k.opts = server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: k.t.TempDir(), NoSigs: true, NoLog: true}
		k.start()
		k.opts.Port = k.s.Addr().(*net.TCPAddr).Port // the same after a restart
		k.t.Cleanup(func() { k.s.Shutdown(); k.s.WaitForShutdown() })
	})
	return k.s.ClientURL()
}

func (k *contract) start() {
	opts := k.opts
	s, err := server.NewServer(&opts)
	if err != nil {
		k.t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(30 * time.Second) {
		k.t.Fatal("the server is not ready")
	}
	k.s = s
}

func (k *contract) restart(testing.TB) {
	k.s.Shutdown()
	k.s.WaitForShutdown()
	k.start()
}

func dial(url string) (jetstream.JetStream, *nats.Conn, error) {
	conn, err := nats.Connect(url)
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(conn)
	return js, conn, err
}

// create makes a stream of its own for a resource.
func (k *contract) create(testing.TB) string {
	name, url := "S"+strconv.FormatUint(rand.Uint64(), 36), k.url()
	js, conn, err := dial(url)
	if err != nil {
		k.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := js.CreateStream(context.Background(), jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}}); err != nil {
		k.t.Fatal(err)
	}
	return url + "\n" + name
}

// pausing calls Between before an effect is sent: after the check. It may drop the conditions.
type pausing struct {
	jetstream.JetStream
	unconditional bool
}

func (p pausing) PublishMsg(ctx context.Context, msg *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	if strings.HasSuffix(msg.Subject, ".effect") {
		fencetest.Between(ctx)
		if p.unconditional {
			opts = nil
		}
	}
	return p.JetStream.PublishMsg(ctx, msg, opts...)
}

type write func(ctx context.Context, s fence.Stamp, payload string) error

func (k *contract) sink(name string, unconditional bool, mistake func(*natsfence.Fence, write) write) fencetest.Sink {
	return fencetest.Sink{
		Name: "NATS" + name, Create: k.create, Restart: k.restart,
		MarkFirst: true, Patience: 2 * time.Minute,
		Open: func(where string) (fencetest.Resource, error) {
			url, stream, _ := strings.Cut(where, "\n")
			js, conn, err := dial(url)
			if err != nil {
				return fencetest.Resource{}, err
			}
			f, err := natsfence.New(pausing{js, unconditional}, stream, stream+".mark")
			if err != nil {
				return fencetest.Resource{}, err
			}
			r := fencetest.Resource{
				Write: func(ctx context.Context, s fence.Stamp, payload string) error {
					_, err := f.Publish(ctx, s, stream+".effect", []byte(payload))
					return err
				},
				Effects: func(ctx context.Context) ([]string, error) { return effects(ctx, js, stream) },
				Mark:    f.Mark, Seal: f.Seal, Advance: f.Advance,
				Close: func() error { conn.Close(); return nil },
			}
			if mistake != nil {
				r.Write = mistake(f, r.Write)
			}
			return r, nil
		},
	}
}

func effects(ctx context.Context, js jetstream.JetStream, name string) (all []string, err error) {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return nil, err
	}
	for seq := uint64(1); seq <= stream.CachedInfo().State.LastSeq; seq++ {
		msg, err := stream.GetMsg(ctx, seq)
		if err != nil {
			return nil, err
		}
		if msg.Subject == name+".effect" {
			all = append(all, string(msg.Data))
		}
	}
	return all, nil
}

func (k *contract) good() fencetest.Sink { return k.sink("", false, nil) }

// twins have typical mistakes.
func (k *contract) twins() map[fencetest.Promise]fencetest.Sink {
	return map[fencetest.Promise]fencetest.Sink{
		fencetest.NotOvertaken: k.sink(", no expected sequence", true, nil),
		fencetest.SlipRefused: k.sink(", no slip rule", false, func(f *natsfence.Fence, next write) write {
			return func(ctx context.Context, s fence.Stamp, payload string) error {
				if err := f.Advance(ctx, s); err != nil {
					return err
				}
				return next(ctx, s, payload)
			}
		}),
		fencetest.StaleRefused: k.sink(", the token of the mark instead of the writer's", false, func(f *natsfence.Fence, next write) write {
			return func(ctx context.Context, s fence.Stamp, payload string) error {
				m, err := f.Mark(ctx)
				if err != nil {
					return err
				}
				s.Token = max(s.Token, m.Token)
				return next(ctx, s, payload)
			}
		}),
	}
}

func TestMain(m *testing.M) {
	k := new(contract)
	all := []fencetest.Sink{k.good()}
	for _, twin := range k.twins() {
		all = append(all, twin)
	}
	fencetest.Child(all...)
	os.Exit(m.Run())
}

// A real server passes the tests of a sink, and every twin with a mistake is caught.
func TestSink(t *testing.T) {
	k := &contract{t: t}
	fencetest.Run(t, k.good())
	for promise, twin := range k.twins() {
		t.Run(twin.Name, func(t *testing.T) {
			twin.Patience = 10 * time.Second
			fencetest.Breaks(t, twin, promise)
		})
	}
	t.Run("messages", func(t *testing.T) { messages(t, k) })
}

// A message has the token of its publisher. The subject of the mark is refused, and a mark that
// cannot be read admits nobody.
func messages(t *testing.T, k *contract) {
	ctx := t.Context()
	_, name, _ := strings.Cut(k.create(t), "\n")
	js, conn, err := dial(k.url())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s := fence.Stamp{Deployment: "prod", Group: "billing", Token: 5}
	f, _ := natsfence.New(js, name, name+".mark")
	ack, err := f.Publish(ctx, s, name+".a", []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	if msg, err := stream.GetMsg(ctx, ack.Sequence); err != nil || msg.Header.Get(natsfence.Header) != "5" {
		t.Errorf("%+v, %v", msg, err)
	}
	if _, err := f.Publish(ctx, s, name+".mark", nil); err == nil || errors.Is(err, fence.ErrRefused) {
		t.Errorf("a message on the subject of the mark: %v", err)
	}
	if _, err := js.Publish(ctx, name+".mark", []byte("something else")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Publish(ctx, s, name+".a", nil); err == nil || errors.Is(err, fence.ErrRefused) {
		t.Errorf("a subject that has no mark: %v", err)
	}
}
