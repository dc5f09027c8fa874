package tape

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// ReturnsCache notes that the model may return keys and values, which live as long as its output.
// Most checkpointed layers return none. Those that always do let go of them when the forward pass
// is over, at the earliest.
func (t *Tape) ReturnsCache(k, v Tensor, always bool) {
	held := []int32{t.Home(k.Storage), t.Home(v.Storage)}
	if t.inside && always {
		t.lingering.passed = append(t.lingering.passed, held...)
	}
	switch {
	case t.inside && !always:
	case t.Cfg.Loop.Output == setting.OutputWithCache:
		t.Storages[held[0]].Lingers, t.Storages[held[1]].Lingers = true, true
	default:
		t.lingering.keys = append(t.lingering.keys, held...)
	}
}

// ReturnsCopies notes that the GPT-NeoX of transformers 4.41 turned keys in float32 and returned
// them so, beside those in half precision.
func (t *Tape) ReturnsCopies(k Tensor) {
	k.DType = alloc.Float32
	if !t.inside && t.Storages[k.Storage].Bytes < int64(t.Size(k)) {
		t.lingering.copies += int64(t.Size(k))
	}
}

// Beyond is what training may need at its peak besides, for what is not known: the inputs that an
// old bitsandbytes keeps, and with the output, where the loop may hold it, those of the step
// before and the keys and values that decoders of transformers return (past_key_values). It says what most of that
// depends on, and the option that says it.
func (t *Tape) Beyond() (bytes int64, what, says string) {
	held := t.Cfg.Loop.Output == setting.OutputUnknown || t.Cfg.Loop.Output == setting.OutputHeld
	inputs := t.lingering.mostInside + t.sum(t.lingering.inputs, func(s *Storage) bool { return held || !s.Kept })
	if held {
		inputs += t.sum(t.lingering.inputs, func(s *Storage) bool { return !s.Kept })
	}
	keys := int64(0)
	if held {
		keys = t.sum(t.lingering.keys, func(*Storage) bool { return true })
	}
	if held || t.Cfg.Loop.Output == setting.OutputWithCache {
		keys += t.lingering.copies
	}
	if inputs > keys {
		return inputs + keys, "whether bitsandbytes keeps inputs, as it did before 0.43.2", "Bitsandbytes"
	}
	return inputs + keys, "whether the code holds keys and values with the output", "Loop.Output"
}

// keptInside notes what an old bitsandbytes keeps when a checkpointed layer runs again.
func (t *Tape) keptInside() {
	t.lingering.mostInside = max(t.lingering.mostInside, t.sum(t.lingering.inputsInside, func(s *Storage) bool { return !s.Kept }))
	t.lingering.inputsInside = t.lingering.inputsInside[:0]
}

// sum is the size of the storages that count, each once.
func (t *Tape) sum(ids []int32, counts func(*Storage) bool) (n int64) {
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if s := &t.Storages[id]; counts(s) {
			n += s.Bytes
		}
	}
	return n
}

// HoldPassed keeps alive until the forward pass is over what checkpointed layers return.
func (t *Tape) HoldPassed() {
	for _, id := range t.lingering.passed {
		t.Storages[id].Last = max(t.Storages[id].Last, int32(len(t.Ops)-1))
	}
}
