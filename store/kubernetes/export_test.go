package kubernetes

import "github.com/tenurehq/tenure/store/kv"

// NewDriver returns the driver alone, and how to close it.
func NewDriver(cfg Config) (kv.Driver, func(), error) {
	d, err := newDriver(cfg)
	if err != nil {
		return nil, nil, err
	}
	return d, d.Close, nil
}
