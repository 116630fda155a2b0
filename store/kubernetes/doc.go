// Package kubernetes keeps elections in Leases (coordination.k8s.io/v1) of a Kubernetes cluster.
//
// # Limitations
//
//   - The API server keeps what it acknowledged, as long as its etcd does.
//   - A TTL is at least 1 s, or Config.MinTTL. Candidates observe each other's sessions; the
//     cluster's clocks are not used. A silent session ends after its TTL and up to an eighth of it
//     more. A session that nobody observes stays alive.
//   - A transaction has one Lease, so a grant takes about ten requests. Use store/etcd for
//     thousands of groups.
//   - An idle candidate sends its keep-alives, reads the leader's session eight times in a TTL,
//     and watches. Watches do not deliver keep-alives.
//   - Deleting the Lease of a session's beat ends that session at once. Its process learns this
//     with its next keep-alive. Until then it believes that it leads, and only a fence stops it.
//
// # Lost data
//
// If an acknowledged grant is lost, the store grants nothing and keeps no session alive until an
// operator raises the epoch (store.ErrRewound). It notices:
//
//   - a deleted record, "meta" or "incarnation" Lease, and Leases that a backup tool restored or
//     copied into another cluster: every client;
//   - an etcd that was restored, and a record that was deleted with its grant: clients that were
//     running at the time.
//
// If everything was deleted and all clients were restarted, they begin a deployment with another
// name, which sinks refuse, unless Config.Deployment is set. deploy/kubernetes/protect.yaml
// prevents deletion by hand. Leases have no finalizer, because it would also prevent the
// deletion of their namespace.
//
// # Rights
//
// get, list, watch, create, patch and delete on leases in one namespace, and nothing else:
// deploy/kubernetes/rbac.yaml. Open names every verb that is missing.
//
// # Layout
//
// "kubectl get leases -l tenure/kind=record" shows who leads each group. A Lease is named after
// its key (tenure.record.billing), and its annotation "tenure/value" has the value. The spec is
// only for display:
//
//	record/{group}     holderIdentity, leaseTransitions (grants so far), renewTime (last change)
//	session/{session}  holderIdentity, leaseDurationSeconds
//	beat/{session}     renewTime: exists while the session is alive
//
// The other keys are those of package kv. A key's version is the resourceVersion.
package kubernetes
