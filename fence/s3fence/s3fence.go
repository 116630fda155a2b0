package s3fence

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"

	"github.com/tenurehq/tenure/fence"
)

// Client has the methods of *s3.Client that a Fence needs.
type Client interface {
	GetObject(ctx context.Context, in *s3.GetObjectInput, opts ...func(*s3.Options)) (*s3.GetObjectOutput, error)
	PutObject(ctx context.Context, in *s3.PutObjectInput, opts ...func(*s3.Options)) (*s3.PutObjectOutput, error)
}

// Fence is one fenced object. Any number of processes may write it.
type Fence struct {
	client      Client
	bucket, key string
	// One write at a time: two of the same process would only disturb each other.
	turn chan struct{}
}

// New returns the Fence of an object, which need not exist. It does not call the store.
func New(client Client, bucket, key string) (*Fence, error) {
	switch {
	case client == nil:
		return nil, errors.New("s3fence: the client is nil")
	case bucket == "" || key == "":
		return nil, errors.New("s3fence: the bucket or the key is empty")
	}
	return &Fence{client: client, bucket: bucket, key: key, turn: make(chan struct{}, 1)}, nil
}

// Name returns a name that nobody else uses, for an object that the fenced one will point to.
func Name(prefix string, s fence.Stamp) string {
	return fmt.Sprintf("%s%016d-%s", prefix, uint64(s.Token), rand.Text())
}

// Write replaces the data of the object.
func (f *Fence) Write(ctx context.Context, s fence.Stamp, data []byte) error {
	return f.Update(ctx, s, func([]byte) ([]byte, error) { return data, nil })
}

// Update replaces the data by what change returns, which gets the present data, nil if there is no
// object. change is called again if another write came in between.
//
// The error is a refusal (fence.ErrRefused: nothing was written), that of change, or one of the
// store: then the outcome may be unknown.
func (f *Fence) Update(ctx context.Context, s fence.Stamp, change func(old []byte) ([]byte, error)) error {
	return f.write(ctx, s, fence.Mark.Admit, change)
}

// Seal raises the mark to the stamp's token, and keeps the data.
func (f *Fence) Seal(ctx context.Context, s fence.Stamp) error {
	return f.write(ctx, s, fence.Mark.Admit, nil)
}

// Advance raises the mark to any token, past the slip rule. It never lowers it.
func (f *Fence) Advance(ctx context.Context, s fence.Stamp) error {
	return f.write(ctx, s, fence.Mark.Advance, nil)
}

// Read returns the data, nil if there is no object.
func (f *Fence) Read(ctx context.Context) ([]byte, error) {
	o, err := f.read(ctx)
	return o.data, f.wrap(err)
}

// Mark returns the mark; the zero Mark if there is no object.
func (f *Fence) Mark(ctx context.Context) (fence.Mark, error) {
	o, err := f.read(ctx)
	return o.head.Mark, f.wrap(err)
}

// Probe returns an error if the store does not honour the conditions of a PUT. It overwrites the
// object <key>.probe.
func (f *Fence) Probe(ctx context.Context) error {
	probe := *f
	probe.key += ".probe"
	if err := probe.put(ctx, object{etag: `"0123456789abcdef0123456789abcdef"`}); !conflict(err) {
		return f.wrap(fmt.Errorf("the store ignores If-Match, so it fences nothing: a PUT for another ETag answered %v", err)) //nolint:errorlint // the answer may be nil
	}
	if err := probe.put(ctx, object{}); err != nil && !conflict(err) {
		return f.wrap(err)
	}
	if err := probe.put(ctx, object{}); !conflict(err) {
		return f.wrap(fmt.Errorf("the store ignores If-None-Match, so it fences nothing: a second PUT answered %v", err)) //nolint:errorlint // the answer may be nil
	}
	return nil
}

// object is the fenced object as it was read: a line with the head, and the data.
type object struct {
	head struct {
		fence.Mark
		Write string `json:"write"` // differs for each write
	}
	data []byte
	etag string // empty: there is no object
}

func (f *Fence) write(ctx context.Context, s fence.Stamp, rule func(fence.Mark, fence.Stamp) (fence.Mark, error), change func([]byte) ([]byte, error)) error {
	if err := s.Validate(); err != nil {
		return f.wrap(err)
	}
	select {
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
	case <-ctx.Done():
		return f.wrap(ctx.Err())
	}
	for {
		o, err := f.read(ctx)
		if err != nil {
			return f.wrap(err)
		}
		next, err := rule(o.head.Mark, s)
		if err != nil {
			return f.wrap(err)
		}
		if change != nil {
			if o.data, err = change(o.data); err != nil {
				return err
			}
		} else if next == o.head.Mark {
			return nil
		}
		o.head.Mark = next
		if err := f.put(ctx, o); !conflict(err) {
			return f.wrap(err)
		}
	}
}

// put writes the object if its ETag is still the one that was read.
func (f *Fence) put(ctx context.Context, o object) error {
	o.head.Write = rand.Text()
	head, err := json.Marshal(o.head)
	if err != nil {
		return err
	}
	in := &s3.PutObjectInput{Bucket: &f.bucket, Key: &f.key, Body: bytes.NewReader(append(append(head, '\n'), o.data...))}
	if o.etag == "" {
		in.IfNoneMatch = aws.String("*")
	} else {
		in.IfMatch = &o.etag
	}
	// A retry of the client would be refused because of the first try, whose answer was lost.
	_, err = f.client.PutObject(ctx, in, func(o *s3.Options) { o.Retryer = aws.NopRetryer{} })
	return err
}

func (f *Fence) read(ctx context.Context) (o object, err error) {
	out, err := f.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &f.bucket, Key: &f.key})
	if coded(err, "NoSuchKey") {
		return o, nil
	}
	if err != nil {
		return o, err
	}
	defer func() { _ = out.Body.Close() }()
	all, err := io.ReadAll(out.Body)
	if err != nil {
		return o, err
	}
	head, data, found := bytes.Cut(all, []byte("\n"))
	if err := json.Unmarshal(head, &o.head); err != nil || !found || !o.head.Token.Valid() || aws.ToString(out.ETag) == "" {
		return o, fmt.Errorf("the object has no mark, so nothing is written: is the key used for something else? %w", err)
	}
	o.data, o.etag = data, *out.ETag
	return o, nil
}

// conflict reports that the object has changed since it was read.
func conflict(err error) bool {
	return coded(err, "PreconditionFailed") || coded(err, "ConditionalRequestConflict") || coded(err, "NoSuchKey")
}

func coded(err error, code string) bool {
	var e smithy.APIError
	return errors.As(err, &e) && e.ErrorCode() == code
}

func (f *Fence) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("s3fence: object %s/%s: %w", f.bucket, f.key, err)
}
