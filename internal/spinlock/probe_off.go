//go:build !lockprobe || !linux

package spinlock

// probe measures nothing.
type probe struct{}

func (*probe) locked()    {}
func (*probe) unlocking() {}

// Longest is unknown.
func (m *Mutex) Longest() (h Hold, known bool) { return Hold{}, false }

// Forget does nothing.
func (m *Mutex) Forget() {}
