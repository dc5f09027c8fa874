package zoo

import "slices"

// SourceOf says where a model's number of parameters is published.
func SourceOf(m Model) string {
	return entries()[slices.IndexFunc(entries(), func(e entry) bool { return e.name == m.Name })].source
}
