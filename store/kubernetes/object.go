package kubernetes

import (
	"crypto/rand"
	"encoding/json"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/tenurehq/tenure/store/kv"
)

// object is a Lease in a create or patch request. In a patch, nil clears a field.
type object struct {
	Metadata metadata `json:"metadata"`
	Spec     *spec    `json:"spec,omitempty"`
}

type metadata struct {
	Name            string             `json:"name,omitempty"`
	ResourceVersion string             `json:"resourceVersion,omitempty"`
	Labels          map[string]*string `json:"labels,omitempty"`
	Annotations     map[string]string  `json:"annotations,omitempty"`
}

// spec is only for display: the driver does not read it.
type spec struct {
	HolderIdentity       *string         `json:"holderIdentity"`
	LeaseDurationSeconds *int64          `json:"leaseDurationSeconds"`
	RenewTime            *meta.MicroTime `json:"renewTime"`
	LeaseTransitions     *int64          `json:"leaseTransitions"`
}

// newObject returns a Lease with the value of a write.
func newObject(w kv.Write) object {
	o := object{
		Metadata: metadata{
			Labels:      map[string]*string{quietLabel: nil},
			Annotations: map[string]string{valueNote: string(w.Value), writeNote: rand.Text()},
		},
		Spec: newSpec(w),
	}
	if w.Quiet {
		o.Metadata.Labels[quietLabel] = new("true")
	}
	return o
}

// newSpec returns the value of a write for display.
func newSpec(w kv.Write) *spec {
	var v struct {
		NodeID  *string `json:"node_id"`
		Session string  `json:"session"`
		TTL     int64   `json:"ttl_ms"`
		Ended   string  `json:"ended"`
		Count   int64   `json:"count"`
	}
	_ = json.Unmarshal(w.Value, &v) // other keys have other values
	s := &spec{RenewTime: new(meta.NowMicro())}
	switch kindOf(w.Key) {
	case "record":
		s.LeaseTransitions = &v.Count
		if v.Session != "" {
			s.HolderIdentity = v.NodeID
		}
	case "session":
		if v.Ended == "" {
			s.HolderIdentity = v.NodeID
		}
		s.LeaseDurationSeconds = new(max(1, (v.TTL+999)/1000))
	}
	return s
}

func encode(o object) []byte {
	data, err := json.Marshal(o)
	if err != nil {
		panic("kubernetes: " + err.Error()) // strings, numbers and times
	}
	return data
}

func post(c rest.Interface, o object) *rest.Request {
	return c.Post().SetHeader("Content-Type", runtime.ContentTypeJSON).Body(encode(o))
}
