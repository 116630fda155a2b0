// Package auth decides who is asking the election service, what they may do, and
// how much of it; and it writes down what was done and refused.
//
// # Who
//
// An identity is a name, the node id, and it never comes from a body. It comes from
//
//   - a client certificate: the one place of it that [CertName] fixes, by default
//     its single DNS name. There is no falling back from one place to another: a CA
//     that vouches for names in one place need not vouch for the others;
//   - a JWT: its sub (or the claim that is configured), after algorithm, key id,
//     issuer, audience and expiry were checked against what is configured. Keys come
//     from a local file. Whoever holds a key of that file can name anybody;
//   - a static token made by [NewToken], of which a file keeps the SHA-256. A slow hash
//     would protect guessable tokens; these carry 256 random bits, and no other
//     shape is taken.
//
// A token comes in the Authorization header and nowhere else; one in a query string is
// refused, for it is in some log already. A caller that shows a certificate and a token
// must have one name in both. Several ways may be configured at once; one name is one
// identity, however it was shown.
//
// Without any of these the service listens on loopback only, names are taken as given
// and everything is allowed, to callers that address it by a loopback name (a web page
// that points its own name at 127.0.0.1 is refused). Off loopback [New] refuses to start
// without credentials, or with tokens over plain HTTP, unless told Insecure.
//
// # What
//
// A policy file gives names roles, and roles verbs on prefixes of group names. What it
// does not allow is denied; no verb implies another. [Gate.Guard] checks it for a route.
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
// A name that ends in * stands for all that begin so; "*" for everybody who is known. A
// caller has the roles of every line that fits. Who is refused may do nothing: the way
// to take back a certificate.
//
// # How much
//
// Each identity has a rate of requests and, apart from it, a rate of renewals; a number
// of streams; and quotas that the service counts in the store. Renewals and
// resignations have places of their own among the requests under way, so they are admitted
// when everything else is saturated. Campaigns have few places: the engine has time for
// renewals whatever the number of callers that campaign. The rates are per instance of the service: n instances behind a load
// balancer allow up to n times as much. What tells a caller's address, for callers without
// an identity, is the connection: forwarding headers are not believed.
//
// # Files
//
// Certificates, keys, tokens and the policy are read again while the service runs
// ([Gate.Reload], and a poll). A file that cannot be read or makes no sense leaves the
// one before in force, and [Gate.Status] and the log say so. A credential that is gone
// from the files is refused from then on, also on connections that were opened with it;
// what outlives a request asks [Gate.Recheck].
//
// # Audit
//
// One JSON object a line, appended and rotated by size. Elections do not wait for it: an
// entry is queued, written within milliseconds, and synced within a second, so a kill of
// the process can lose the last few, a loss of power the last second. When the disk is full
// or broken, entries wait in a bounded queue and are dropped and counted beyond it; the
// log says so, and the file says how many are missing as soon as it can be written.
// Stopping elections for want of a log would turn a full disk into an outage. Denials of
// one caller beyond ten a second are counted instead of written, so that nobody can
// push the evidence out of the file.
//
// Anything that looks like a token or a private key is replaced by a fingerprint before it
// is written anywhere ([Redact]).
package auth
