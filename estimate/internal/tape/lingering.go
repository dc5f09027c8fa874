package tape

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// ReturnsCache notes that the model may return keys and values, which then live as long as its
// output. Most checkpointed layers return none; those that always do (always is true) hold theirs
// at least until the forward pass is over.
func (t *Tape) ReturnsCache(k, v Tensor, always bool) {
	held := []int32{t.Home(k.storage), t.Home(v.storage)}
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

// ReturnsCopies notes that a model may return a copy of its keys in float32 beside those in half precision.
func (t *Tape) ReturnsCopies(k Tensor) {
	k.DType = alloc.Float32
	if !t.inside && t.Storages[k.storage].Bytes < int64(t.Size(k)) {
		t.lingering.copies += int64(t.Size(k))
	}
}

// Beyond returns the bytes by which the peak of training may be higher than the estimate where the options do not say which
// case holds: the inputs that an old bitsandbytes keeps; and, if the loop's code may hold the model's output, the output
// of the step before and the keys and values that decoders of transformers return (past_key_values). what is the largest
// cause, and says the option that settles it.
func (t *Tape) Beyond() (bytes int64, what, says string) {
	held := t.Cfg.Loop.Output == "" || t.Cfg.Loop.Output == setting.OutputHeld
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
		return inputs + keys, "whether bitsandbytes keeps inputs, as it did before 0.43.2", "Installed"
	}
	return inputs + keys, "whether the code holds keys and values with the output", "Loop.Output"
}

// keptInside notes what an old bitsandbytes keeps while a checkpointed layer runs again.
func (t *Tape) keptInside() {
	t.lingering.mostInside = max(t.lingering.mostInside, t.sum(t.lingering.inputsInside, func(s *Storage) bool { return !s.Kept }))
	t.lingering.inputsInside = t.lingering.inputsInside[:0]
}

// sum adds up the sizes of the storages for which counts is true, each storage once.
func (t *Tape) sum(ids []int32, counts func(*Storage) bool) (n int64) {
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if s := &t.Storages[id]; counts(s) {
			n += s.Bytes
		}
	}
	return n
}

// HoldPassed keeps what checkpointed layers return alive until the forward pass is over.
func (t *Tape) HoldPassed() {
	for _, id := range t.lingering.passed {
		t.Storages[id].Last = max(t.Storages[id].Last, int32(len(t.Ops)-1))
	}
}
