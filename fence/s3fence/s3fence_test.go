package s3fence_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/fencetest"
	"github.com/tenurehq/tenure/fence/s3fence"
	"github.com/tenurehq/tenure/internal/servertest"
)

var (
	_ fence.Sealer   = (*s3fence.Fence)(nil)
	_ s3fence.Client = (*s3.Client)(nil)
)

const bucket = "tenure"

func dial(url string) *s3.Client {
	return s3.New(s3.Options{
		BaseEndpoint: &url, UsePathStyle: true, Region: "us-east-1",
		Credentials: credentials.NewStaticCredentialsProvider(servertest.S3User, servertest.S3Secret, ""),
	})
}

// contract starts a server on first use. A child process never uses it.
type contract struct {
	t    testing.TB
	once sync.Once
	s    *servertest.Server
}

func (k *contract) server() *servertest.Server {
	k.once.Do(func() {
		k.s = servertest.S3(k.t)
		if _, err := dial(k.s.URL()).CreateBucket(context.Background(), &s3.CreateBucketInput{Bucket: aws.String(bucket)}); err != nil {
			k.t.Fatal(err)
		}
	})
	return k.s
}

// unconditional is a client that drops the conditions of a PUT, or the number that makes every
// object differ.
type unconditional struct {
	s3fence.Client
	drop func(*s3.PutObjectInput)
}

func (u unconditional) PutObject(ctx context.Context, in *s3.PutObjectInput, opts ...func(*s3.Options)) (*s3.PutObjectOutput, error) {
	u.drop(in)
	return u.Client.PutObject(ctx, in, opts...)
}

type write func(ctx context.Context, s fence.Stamp, payload string) error

// The effects are the lines of the data.
func (k *contract) sink(name string, via func(*s3.Client) s3fence.Client, mistake func(*s3fence.Fence, write) write) fencetest.Sink {
	return fencetest.Sink{
		Name:     "S3" + name,
		Patience: 2 * time.Minute,
		Create:   func(testing.TB) string { return k.server().URL() + "\n" + strconv.FormatUint(rand.Uint64(), 36) },
		Restart:  func(testing.TB) { k.server().Restart() },
		Open: func(where string) (fencetest.Resource, error) {
			url, key, _ := strings.Cut(where, "\n")
			f, err := s3fence.New(via(dial(url)), bucket, key)
			if err != nil {
				return fencetest.Resource{}, err
			}
			r := fencetest.Resource{
				Write: func(ctx context.Context, s fence.Stamp, payload string) error {
					return f.Update(ctx, s, func(old []byte) ([]byte, error) {
						fencetest.Between(ctx)
						return append(old, payload+"\n"...), nil
					})
				},
				Effects: func(ctx context.Context) ([]string, error) {
					data, err := f.Read(ctx)
					return strings.FieldsFunc(string(data), func(c rune) bool { return c == '\n' }), err
				},
				Mark: f.Mark, Seal: f.Seal, Advance: f.Advance,
			}
			if mistake != nil {
				r.Write = mistake(f, r.Write)
			}
			return r, nil
		},
	}
}

func same(c *s3.Client) s3fence.Client { return c }

func (k *contract) good() fencetest.Sink { return k.sink("", same, nil) }

// twins have typical mistakes.
func (k *contract) twins() map[fencetest.Promise]fencetest.Sink {
	return map[fencetest.Promise]fencetest.Sink{
		fencetest.SealWaits: k.sink(", PUT without a condition", func(c *s3.Client) s3fence.Client {
			return unconditional{c, func(in *s3.PutObjectInput) { in.IfMatch, in.IfNoneMatch = nil, nil }}
		}, nil),
		fencetest.SlipRefused: k.sink(", no slip rule", same, func(f *s3fence.Fence, next write) write {
			return func(ctx context.Context, s fence.Stamp, payload string) error {
				if err := f.Advance(ctx, s); err != nil {
					return err
				}
				return next(ctx, s, payload)
			}
		}),
		fencetest.StaleRefused: k.sink(", the token of the object instead of the writer's", same, func(f *s3fence.Fence, next write) write {
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
	t.Run("equal data", func(t *testing.T) { equalData(t, dial(k.server().URL())) })
	t.Run("probe", func(t *testing.T) { probe(t, dial(k.server().URL())) })
	t.Run("pointer", func(t *testing.T) { pointer(t, dial(k.server().URL())) })
}

func at(token fence.Token) fence.Stamp {
	return fence.Stamp{Deployment: "prod", Group: "billing", Token: token}
}

// A write that is paused while others change the data and change it back is made on what is there
// now: equal data has another ETag.
func equalData(t *testing.T, client *s3.Client) {
	ctx := t.Context()
	f, _ := s3fence.New(client, bucket, "equal")
	other, _ := s3fence.New(client, bucket, "equal")
	if err := f.Write(ctx, at(5), []byte("a")); err != nil {
		t.Fatal(err)
	}
	calls := 0
	err := f.Update(ctx, at(5), func(old []byte) ([]byte, error) {
		if calls++; calls == 1 {
			for _, data := range []string{"b", "a"} {
				if err := other.Write(ctx, at(5), []byte(data)); err != nil {
					t.Fatal(err)
				}
			}
		}
		return append(old, '!'), nil
	})
	if data, rerr := f.Read(ctx); err != nil || rerr != nil || calls != 2 || string(data) != "a!" {
		t.Errorf("%d calls, %q, %v, %v", calls, data, err, rerr)
	}
}

// Probe accepts a store that honours the conditions, and no other. A foreign object is not
// overwritten.
func probe(t *testing.T, client *s3.Client) {
	ctx := t.Context()
	f, _ := s3fence.New(client, bucket, "probed")
	for range 2 {
		if err := f.Probe(ctx); err != nil {
			t.Error(err)
		}
	}
	for name, drop := range map[string]func(*s3.PutObjectInput){
		"If-Match":      func(in *s3.PutObjectInput) { in.IfMatch = nil },
		"If-None-Match": func(in *s3.PutObjectInput) { in.IfNoneMatch = nil },
	} {
		f, _ := s3fence.New(unconditional{client, drop}, bucket, "probed")
		if err := f.Probe(ctx); err == nil || !strings.Contains(err.Error(), "ignores "+name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
	if _, err := client.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: aws.String("foreign"), Body: bytes.NewReader([]byte("data"))}); err != nil {
		t.Fatal(err)
	}
	f, _ = s3fence.New(client, bucket, "foreign")
	if err := f.Seal(ctx, at(5)); err == nil || errors.Is(err, fence.ErrRefused) {
		t.Errorf("an object without a mark: %v", err)
	}
}

// Objects that a stale leader wrote stay invisible, since it cannot change the object that points
// to them.
func pointer(t *testing.T, client *s3.Client) {
	ctx := t.Context()
	f, _ := s3fence.New(client, bucket, "pointer")
	add := func(token fence.Token, data string) error {
		name := s3fence.Name("data/", at(token))
		if _, err := client.PutObject(ctx, &s3.PutObjectInput{Bucket: aws.String(bucket), Key: &name, Body: strings.NewReader(data)}); err != nil {
			t.Fatal(err)
		}
		return f.Update(ctx, at(token), func(old []byte) ([]byte, error) { return append(old, name+"\n"...), nil })
	}
	for _, token := range []fence.Token{5, 6, 6} {
		if err := add(token, "x"); err != nil {
			t.Fatal(err)
		}
	}
	if err := add(5, "stale"); !errors.Is(err, fence.ErrRefused) {
		t.Errorf("a stale leader: %v", err)
	}
	names, err := f.Read(ctx)
	if err != nil || bytes.Count(names, []byte("data/000000000000000")) != 3 {
		t.Errorf("%q, %v", names, err)
	}
}
