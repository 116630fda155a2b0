package advise

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Where is an etcd cluster, and who asks.
type Where struct {
	Endpoints          []string
	TLS                *tls.Config
	Username, Password string
	Timeout            time.Duration // of each question
}

func (w Where) dial(endpoints ...string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints: endpoints, TLS: w.TLS, Username: w.Username, Password: w.Password, DialTimeout: w.Timeout, Logger: zap.NewNop(),
	})
}

// AskEtcd asks every member of a cluster how it is: those that the cluster knows, or, if
// none answers, those that were named.
func AskEtcd(ctx context.Context, w Where) []Member {
	members, known := w.list(ctx)
	var all sync.WaitGroup
	for i := range members {
		all.Go(func() { w.ask(ctx, &members[i]) })
	}
	all.Wait()
	if known {
		w.alarms(ctx, members)
	}
	return members
}

// list asks the named endpoints, one after the other, who the members are.
func (w Where) list(ctx context.Context) (members []Member, known bool) {
	for _, e := range w.Endpoints {
		members = append(members, Member{Name: "?", URL: e})
	}
	for i, e := range w.Endpoints {
		var got *clientv3.MemberListResponse
		err := w.with(ctx, e, func(ctx context.Context, c *clientv3.Client) (err error) {
			got, err = c.MemberList(ctx)
			return err
		})
		if err != nil {
			members[i].Err = err
			continue
		}
		members = nil
		for _, m := range got.Members {
			one := Member{Name: m.Name, Learner: m.IsLearner, Err: errors.New("it has told nobody its address")}
			if one.Name == "" {
				one.Name = fmt.Sprintf("%x, not started", m.ID)
			}
			if len(m.ClientURLs) > 0 {
				one.URL, one.Err = m.ClientURLs[0], nil
			}
			members = append(members, one)
		}
		return members, true
	}
	return members, false
}

func (w Where) with(ctx context.Context, endpoint string, f func(context.Context, *clientv3.Client) error) error {
	c, err := w.dial(endpoint)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(ctx, w.Timeout)
	defer cancel()
	return said(f(ctx, c))
}

// said replaces what a context says by what it means.
func said(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("no answer in time")
	}
	return err
}

func (w Where) ask(ctx context.Context, m *Member) {
	if m.Err != nil {
		return
	}
	m.Err = w.with(ctx, m.URL, func(ctx context.Context, c *clientv3.Client) error {
		s, err := c.Status(ctx, m.URL)
		if err != nil {
			return err
		}
		m.Version, m.Size, m.Quota, m.Learner = s.Version, s.DbSizeInUse, s.DbSizeQuota, s.IsLearner
		m.Leads = s.Leader != 0 && s.Leader == s.Header.MemberId
		return nil
	})
	if m.Err == nil {
		m.Offset, m.OffsetOK = WallOffset(ctx, strings.TrimRight(m.URL, "/")+"/version", w.TLS, w.Timeout)
	}
}

func (w Where) alarms(ctx context.Context, members []Member) {
	for _, e := range w.Endpoints {
		var got *clientv3.AlarmResponse
		err := w.with(ctx, e, func(ctx context.Context, c *clientv3.Client) (err error) {
			got, err = c.AlarmList(ctx)
			return err
		})
		if err != nil {
			continue // with authentication on it is an administrator's to see
		}
		for _, a := range got.Alarms {
			if a.Alarm != pb.AlarmType_NONE && len(members) > 0 {
				members[0].Alarms = append(members[0].Alarms, a.Alarm.String())
			}
		}
		return
	}
}

// WallOffset reads a server's wall clock from the date of an answer: it is good to a
// second and half a round trip.
func WallOffset(ctx context.Context, url string, config *tls.Config, timeout time.Duration) (time.Duration, bool) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, false
	}
	transport := &http.Transport{TLSClientConfig: config.Clone(), DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	sent := time.Now()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0, false
	}
	_ = resp.Body.Close()
	then, err := http.ParseTime(resp.Header.Get("Date"))
	if err != nil {
		return 0, false
	}
	half := time.Since(sent) / 2
	// The date is cut to the second: on average half a second is missing.
	return then.Add(500 * time.Millisecond).Sub(sent.Add(half)), true
}
