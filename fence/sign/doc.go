// Package sign signs and verifies stamps, so that a sink need not trust their senders.
//
// A token is a number that anybody can claim. The election service signs what the engine has granted:
// deployment, group, token, session and candidate. A sink that requires a signature refuses every
// stamp that the service has not granted, before the token is compared:
//
//	keys, err := sign.Load("/etc/tenure/fencing-keys.json") // or sign.Fetch from GET /v1/keys
//	guard := httpfence.Guard{Verify: sign.NewVerifier(keys).Verify}
//
// A signature is a JWS (RFC 7515) with an Ed25519 key (alg EdDSA), and keys are a JWK set, so other
// languages verify it with any JOSE library. Its claims are those of [Claims]. It has no expiry: how
// long a token is good for is what the fence decides, by comparing.
//
// # Keys
//
// A key is named by its thumbprint (RFC 7638). To rotate, add the new public key to every sink's set,
// then sign with it, and remove the old one when its last term is over. To revoke a key, remove it:
// what it signed is refused from then on.
//
// # Limitations
//
// A signature proves that the token was granted, not that it is the newest one: the fence does that.
// Anybody who has read a stamp can repeat it while its term lasts. Give stamps only to sinks that you
// trust with them, or bind them to the leader's TLS certificate ([Claims].Confirm and [WithPeer]).
//
// The sequence number of a strict sink is not signed.
package sign
