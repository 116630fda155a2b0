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

// Cluster is an etcd cluster and the caller's credentials.
type Cluster struct {
	Endpoints          []string
	TLS                *tls.Config
	Username, Password string
	Timeout            time.Duration // of each call
}

// QueryEtcd asks every member of a cluster for its status: the members that the cluster
// knows or, if none answers, the given endpoints.
func QueryEtcd(ctx context.Context, c Cluster) []Member {
	members, known := c.list(ctx)
	var all sync.WaitGroup
	for i := range members {
		all.Go(func() { c.status(ctx, &members[i]) })
	}
	all.Wait()
	if known && len(members) > 0 {
		members[0].Alarms = c.alarms(ctx)
	}
	return members
}

// list asks the endpoints, one after the other, for the members.
func (c Cluster) list(ctx context.Context) (members []Member, known bool) {
	for _, e := range c.Endpoints {
		var got *clientv3.MemberListResponse
		err := c.call(ctx, e, func(ctx context.Context, client *clientv3.Client) (err error) {
			got, err = client.MemberList(ctx)
			return err
		})
		if err != nil {
			members = append(members, Member{Name: "?", URL: e, Err: err})
			continue
		}
		members = nil
		for _, m := range got.Members {
			one := Member{Name: m.Name, Learner: m.IsLearner, Err: errors.New("it has announced no address")}
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

func (c Cluster) call(ctx context.Context, endpoint string, f func(context.Context, *clientv3.Client) error) error {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{endpoint}, TLS: c.TLS, Username: c.Username, Password: c.Password, DialTimeout: c.Timeout, Logger: zap.NewNop(),
	})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	if err = f(ctx, client); errors.Is(err, context.DeadlineExceeded) {
		return errors.New("timeout")
	}
	return err
}

func (c Cluster) status(ctx context.Context, m *Member) {
	if m.Err != nil {
		return
	}
	m.Err = c.call(ctx, m.URL, func(ctx context.Context, client *clientv3.Client) error {
		s, err := client.Status(ctx, m.URL)
		if err != nil {
			return err
		}
		m.Size, m.Quota, m.Learner = s.DbSizeInUse, s.DbSizeQuota, s.IsLearner
		m.Leads = s.Leader != 0 && s.Leader == s.Header.MemberId
		return nil
	})
	if m.Err == nil {
		m.Offset, m.OffsetOK = WallOffset(ctx, strings.TrimRight(m.URL, "/")+"/version", c.TLS, c.Timeout)
	}
}

// alarms returns the alarms of the cluster, as far as the caller may see them.
func (c Cluster) alarms(ctx context.Context) (alarms []string) {
	for _, e := range c.Endpoints {
		err := c.call(ctx, e, func(ctx context.Context, client *clientv3.Client) error {
			got, err := client.AlarmList(ctx)
			if err != nil {
				return err
			}
			for _, a := range got.Alarms {
				if a.Alarm != pb.AlarmType_NONE {
					alarms = append(alarms, a.Alarm.String())
				}
			}
			return nil
		})
		if err == nil {
			break
		}
	}
	return alarms
}

// WallOffset reads the wall clock of a server from the Date header of a response. It is
// accurate to a second and half a round trip.
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
	// The date is truncated to the second: on average half a second is missing.
	return then.Add(500 * time.Millisecond).Sub(sent.Add(half)), true
}
