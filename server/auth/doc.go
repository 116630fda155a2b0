// Package auth authenticates and authorises the callers of the election service, limits them,
// and writes the audit.
//
// # Authentication
//
// An identity is a name, the node id. It never comes from the body of a request. It comes from
//
//   - a client certificate: the part of it that [CertName] names, by default its single DNS
//     name. There is no fallback from one part to another, because a CA that checks the names
//     in one part need not check the others;
//   - a JWT: its sub, or another configured claim, after its algorithm, key id, issuer,
//     audience and expiry were checked. The keys come from a local file. The holder of a
//     private key of that file can act as anybody;
//   - a bearer credential made by [bearer.NewCredential]. A file has its SHA-256. A slow hash would protect
//     guessable ones; these have 256 random bits, and no other form is accepted.
//
// Both are sent in the Authorization header. One in a query string is refused, because it is
// in some log already. A caller that sends a certificate and one of them must have the same
// name in both. Several ways may be configured at once; one name is one identity.
//
// Without credentials the service listens on loopback only, accepts any name and allows
// everything, to callers that address it by a loopback name (so a web page cannot reach it by
// a name of its own that resolves to 127.0.0.1). On other addresses [New] refuses to start
// without credentials, or with bearer credentials over plain HTTP, unless Insecure is set.
//
// # Authorisation
//
// A policy file gives roles to names, and verbs on prefixes of group names to roles. Everything
// else is denied. No verb implies another. [Gate.Guard] checks the policy for a route.
//
//	{
//	  "roles": {
//	    "node":     [{"prefix": "billing-", "verbs": ["campaign", "observe"]}],
//	    "operator": [{"prefix": "", "verbs": ["observe", "step-down", "admin"]}]
//	  },
//	  "names": {"node-*": ["node"], "alice": ["operator"]},
//	  "refused": ["node-7"]
//	}
//
// A name that ends in * matches all names with that prefix; "*" matches every authenticated
// caller. A caller has the roles of every line that matches. A refused name may do nothing;
// this revokes a certificate.
//
// # Limits
//
// Each identity has a rate of requests, another rate of renewals, a number of streams, and
// quotas that the service counts in the store. Renewals and resignations have slots of their
// own, so they are admitted when everything else is saturated. Campaigns have few slots, so
// that the engine has time for renewals. The rates are per instance: n instances behind a load
// balancer allow up to n times as much. Callers without an identity are counted by the address
// of their connection; forwarding headers are ignored.
//
// # Files
//
// Certificates, keys, credentials and the policy are read again while the service runs
// ([Gate.Reload], and a poll). If a file is broken, its previous content stays in force, and
// the log says so. A credential that was removed is refused from then on, also
// on open connections; streams and waits call [Gate.Recheck].
//
// # Audit
//
// Package audit writes every change and every denial. Everything that looks like a credential
// or a private key is replaced by a fingerprint before it is written anywhere (package secret).
package auth
