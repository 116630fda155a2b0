// Package httpfence carries stamps over HTTP: a client that stamps its requests,
// and a server that reads and refuses them.
//
// A middleware alone is not a sink. Between its check and the handler's write the
// server may be paused for as long as it takes to elect another leader, and the
// stale write is made all the same. This is wrong:
//
//	guard := httpfence.Guard{Mark: dir}
//	http.Handle("/report", guard.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
//		os.WriteFile("report", body, 0o644) // no stamp: nothing is fenced
//	})))
//
// What makes a write safe is a handler that takes the stamp to it, where it is
// compared with the mark and the write made in one step. This is right:
//
//	http.Handle("/report", guard.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
//		stamp, _ := httpfence.FromContext(r.Context())
//		if err := dir.WriteFile(r.Context(), stamp, "report", body, 0o644); err != nil {
//			httpfence.WriteError(w, err)
//		}
//	})))
//
// Nor is anybody kept out who sends a higher token: a stamp is a claim, believed
// unless [Guard] has a Verifier that knows better. And a response that never came
// says nothing about the write: repeat it under the same stamp.
//
// On the wire a stamp is four headers, each at most once:
//
//	Fencing-Deployment: prod     visible ASCII, at most 255 bytes
//	Fencing-Group: billing       likewise
//	Fencing-Token: 42            1 to 2^53-1, decimal digits
//	Fencing-Seq: 7               0 to 2^53-1; left out where it is 0
//
// A refusal is application/problem+json, see [Problem]. Its status says what to do:
//
//	412  stale: a newer leader was here, or seq is not the next: stop
//	409  slip, foreign, clone: no leader's doing; somebody must look at it
//	428  missing: the request has no stamp
//	400  invalid: the stamp is none
//	503  unavailable: the mark could not be read, nothing was written; try again
//
// The client turns it back into the error of package fence with [Refusal].
package httpfence
