package httpfence_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/tenurehq/tenure/fence"
	"github.com/tenurehq/tenure/fence/filefence"
	"github.com/tenurehq/tenure/fence/httpfence"
)

// term stands for a *tenure.Term.
type term fence.Token

func (term) Check() error { return nil }
func (t term) Stamp() fence.Stamp {
	return fence.Stamp{Deployment: "prod", Group: "reports", Token: fence.Token(t)}
}

// The handler passes the stamp to a sink: a guarded directory. The sink refuses a leader
// after a newer one has written, however late its request arrives.
func Example() {
	path, _ := os.MkdirTemp("", "reports-")
	defer func() { _ = os.RemoveAll(path) }()
	dir, err := filefence.Open(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = dir.Close() }()

	server := httptest.NewServer(httpfence.Guard{}.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stamp, _ := httpfence.FromContext(r.Context())
		report, _ := io.ReadAll(r.Body)
		if err := dir.WriteFile(r.Context(), stamp, "today.csv", report, 0o644); err != nil {
			httpfence.WriteError(w, err)
		}
	})))
	defer server.Close()

	for _, t := range []term{41, 42, 41} {
		client := http.Client{Transport: &httpfence.Transport{Term: t}}
		resp, err := client.Post(server.URL, "text/csv", strings.NewReader("report"))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(resp.StatusCode, httpfence.Refusal(resp))
		_ = resp.Body.Close()
	}
	// Output:
	// 200 <nil>
	// 200 <nil>
	// 412 fence: stale write refused: prod/reports token 41, but the sink has seen token 42: stop, another leads
}

// What not to do: the handler ignores the stamp, so nothing connects the check with the
// write. A server that is paused between the two writes for a leader that was replaced long
// ago. As nobody raises the mark, later requests are not refused either.
func ExampleGuard_wrong() {
	var report string
	server := httptest.NewServer(httpfence.Guard{}.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		report = string(text) // pass the stamp to a sink here instead
	})))
	defer server.Close()

	for _, t := range []term{42, 41} {
		client := http.Client{Transport: &httpfence.Transport{Term: t}}
		resp, err := client.Post(server.URL, "text/csv", strings.NewReader(fmt.Sprintf("of leader %d", t)))
		if err != nil {
			fmt.Println(err)
			return
		}
		_ = resp.Body.Close()
	}
	fmt.Println(report)
	// Output:
	// of leader 41
}
