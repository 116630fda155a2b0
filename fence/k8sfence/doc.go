// Package k8sfence fences an object of Kubernetes, such as a ConfigMap, a Deployment or a custom
// resource that a leader owns.
//
//	f, err := k8sfence.New(clientset.CoreV1().ConfigMaps("prod"), "invoices")
//	…
//	err = f.Update(ctx, term.Stamp(), func(c *v1.ConfigMap) error { c.Data["latest"] = "7"; return nil })
//
// # Limitations
//
// The object must exist: create it when you install the program, not from the leader. Writers that
// do not use this package (kubectl, patches, server-side apply, controllers) are checked only if an
// admission policy does it: deploy/kubernetes/fence.yaml is an example, which also forbids to delete
// the object. Whoever may change the policy or the annotations by hand is not checked. A subresource
// such as status has its own Update, and needs a client whose Update is that.
//
// What controllers do because of the object is not fenced. A cluster that was restored from a backup
// has lost the mark too.
//
// # How it works
//
// The mark is in annotations of the object. A write reads the object, compares the mark with the
// stamp, and updates the object with the resourceVersion that it read. The API server refuses the
// update if the object has changed since, and the write begins again.
package k8sfence
