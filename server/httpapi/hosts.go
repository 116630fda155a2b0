package httpapi

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// OnlyHosts refuses requests that a browser sends for a web page of somebody else. Such a
// page can reach a server on loopback or in a private network in two ways: by its own
// name, after the name's DNS record was changed to the server's address (rebinding), or
// by a plain request to another origin. So the Host must be localhost, an IP address, or
// one of names; and an Origin, if there is one, must be the Host.
//
// A name may have a port, which is ignored; an empty one is ignored too.
func OnlyHosts(h http.Handler, names ...string) http.Handler {
	allowed := []string{"localhost"}
	for _, name := range names {
		if name = hostname(name); name != "" {
			allowed = append(allowed, name)
		}
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := foreign(r, allowed); p != nil {
			WriteProblem(w, p)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func foreign(r *http.Request, allowed []string) *Problem {
	// A request without a Host is HTTP/1.0, which no browser sends.
	if host := hostname(r.Host); host != "" && !slices.Contains(allowed, host) {
		if _, err := netip.ParseAddr(host); err != nil {
			return &Problem{Status: http.StatusForbidden, Code: "foreign_host", Detail: fmt.Sprintf("this server is not called %.128q; add the name to its --hosts if it is", host)}
		}
	}
	if len(r.Header["Origin"]) == 0 {
		return nil
	}
	origin := r.Header.Get("Origin")
	if u, err := url.Parse(origin); err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
		return &Problem{Status: http.StatusForbidden, Code: "foreign_origin", Detail: fmt.Sprintf("a web page of %.128q may not call this server", origin)}
	}
	return nil
}

// hostname is a host without its port and in lower case, or the IP address in brackets.
func hostname(hostport string) string {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = strings.Trim(hostport, "[]")
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
