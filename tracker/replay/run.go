package replay

import (
	"errors"
	"fmt"
)

// run runs the program to its end, or to the first request that fails, of which it tells.
func (m *machine) run() (*OOM, error) {
	if oom, err := m.begin(); oom != nil || err != nil {
		return oom, err
	}
	for i := range m.ops {
		o := &m.ops[i]
		if err := m.step(o); errors.Is(err, errFailed) {
			return m.oom(o), nil
		} else if err != nil {
			return nil, fmt.Errorf("replay: event %d: %w", m.record.First()+uint64(o.event), err)
		}
	}
	return nil, nil
}
