package httpapi

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// OnlyHosts refuses requests that a browser sends for a foreign web page. Such a page can reach
// a server on loopback or in a private network in two ways: by its own name, after changing
// the DNS record to the address of the server (rebinding), or by a plain request to another
// origin. So the Host must be localhost, an IP address, or one of names, and the Origin, if
// there is one, must equal the Host.
//
// Ports of names and empty names are ignored.
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
			return Refuse(http.StatusForbidden, "foreign_host", "this server does not accept the host name %.128q; if the name is right, add it to --hosts", host)
		}
	}
	if len(r.Header["Origin"]) == 0 {
		return nil
	}
	origin := r.Header.Get("Origin")
	if u, err := url.Parse(origin); err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
		return Refuse(http.StatusForbidden, "foreign_origin", "a web page of %.128q may not call this server", origin)
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
