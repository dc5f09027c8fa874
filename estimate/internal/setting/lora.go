package setting

import (
	"fmt"
	"path"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// LoRA is estimate.LoRA.
type LoRA struct {
	Rank    int
	Targets []string
	Dropout float64
	DType   alloc.DType
	Base    Base
}

// Excludes reports whether Frozen names the layer at a path or what holds it, which then gets no adapter.
func (c *Config) Excludes(at string) bool {
	for end := range len(at) + 1 {
		if end < len(at) && at[end] != '.' {
			continue
		}
		for _, p := range c.Frozen {
			whole, _ := path.Match(p, at[:end])
			after, _ := path.Match("*."+p, at[:end])
			if whole || after {
				return true
			}
		}
	}
	return false
}

// AllLinear is PEFT's target_modules="all-linear".
const AllLinear = "all-linear"

func (l *LoRA) check() error {
	if l == nil {
		return nil
	}
	switch {
	case l.Rank < 1 || l.Rank > MaxField:
		return fmt.Errorf("Adapt: Rank is %d: want 1 or more", l.Rank)
	case len(l.Targets) == 0:
		return fmt.Errorf("Adapt: there are no Targets: name linear layers, such as q_proj")
	case !(l.Dropout >= 0 && l.Dropout < 1):
		return fmt.Errorf("Adapt: Dropout is %v: want 0 or more and less than 1", l.Dropout)
	case l.DType != 0 && !l.DType.Valid():
		return elementType("Adapt: DType", l.DType)
	}
	return patterns("Adapt: Targets", l.Targets)
}
