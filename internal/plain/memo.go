package plain

import "github.com/gpumemtrack/gpumemtrack/internal/bounded"

// memo is what a pickle stored, by its place.
type memo struct {
	room *bounded.Reader
	near slabs[Value]
	far  map[uint64]Value // at places beyond the end of near
}

// next returns the place of a value that is stored without one.
func (m *memo) next() uint64 { return m.near.len() + uint64(len(m.far)) }

func (m *memo) load(place uint64) (Value, bool) {
	if place < m.near.len() {
		return *m.near.at(int64(place)), true
	}
	v, ok := m.far[place]
	return v, ok
}

func (m *memo) store(place uint64, v Value) error {
	switch n := m.near.len(); {
	case place < n:
		*m.near.at(int64(place)) = v
		return nil
	case place == n && len(m.far) == 0:
		*m.near.at(m.near.add()) = v
		return m.room.Use(valueBytes)
	default:
		m.far[place] = v
		return m.room.Use(4 * valueBytes)
	}
}
