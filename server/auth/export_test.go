package auth

import "slices"

// status returns copies of the sources.
func (g *Gate) status() []*source {
	g.filesMu.Lock()
	defer g.filesMu.Unlock()
	all := slices.Clone(g.files)
	for i, s := range all {
		copied := *s
		all[i] = &copied
	}
	return all
}
