// Package httpfence carries stamps over HTTP: a client adds them to requests, a server reads
// and refuses them.
//
// # Limitations
//
// A middleware alone is not a sink. Between its check and the handler's write the server may
// be paused for as long as it takes to elect another leader, and then the stale write is made.
// This is wrong:
//
//	guard := httpfence.Guard{Mark: dir}
//	http.Handle("/report", guard.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
//		os.WriteFile("report", body, 0o644) // no stamp: nothing is fenced
//	})))
//
// The handler must pass the stamp to a sink, which compares it and writes in one step. This
// is right:
//
//	http.Handle("/report", guard.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
//		stamp, _ := httpfence.FromContext(r.Context())
//		if err := dir.WriteFile(r.Context(), stamp, "report", body, 0o644); err != nil {
//			httpfence.WriteError(w, err)
//		}
//	})))
//
// A caller that sends a higher token is believed, unless [Guard] has a Verifier. A lost
// response says nothing about the write: repeat it with the same stamp.
//
// # Wire format
//
// A stamp is a set of headers, each at most once:
//
//	Fencing-Deployment: prod     visible ASCII, at most 255 bytes
//	Fencing-Group: billing       the same
//	Fencing-Token: 42            1 to 2^53-1, decimal digits
//	Fencing-Seq: 7               0 to 2^53-1; left out if it is 0
//	Fencing-Session: 1b7c…       optional: a digest of the session of the token
//
// A refusal is application/problem+json, see [Problem]. Its status says what to do:
//
//	412  stale: a newer leader has been here, or seq is not the next one: stop
//	409  slip, foreign, clone: a mistake; an operator must look
//	428  missing: the request has no stamp
//	400  invalid: the stamp breaks a rule
//	503  unavailable: the mark could not be read, nothing was written; try again
//
// The client converts it back into the error of package fence with [Refusal].
package httpfence
