package tracker

// paths numbers the paths of sections. Numbers are not given back.
type paths struct {
	names []string // only ever appended to, so that a copy of the slice stays good
	ids   map[string]uint32
}

const (
	noPath    uint32 = iota // outside of all sections
	otherPath               // beyond the bounds

	maxPaths      = 1 << 14
	maxPathLength = 1 << 10
)

func newPaths() paths {
	p := paths{ids: make(map[string]uint32)}
	p.add("")
	p.add("other")
	return p
}

func (p *paths) add(path string) uint32 {
	id := uint32(len(p.names))
	p.names = append(p.names, path)
	p.ids[path] = id
	return id
}

// at returns the number of a path. Paths that are too many or too long are one.
func (p *paths) at(path string) uint32 {
	id, ok := p.ids[path]
	switch {
	case ok:
		return id
	case len(p.names) >= maxPaths || len(path) > maxPathLength:
		return otherPath
	}
	return p.add(path)
}
