package estimate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Unbounded is the upper bound of an amount that has none, because a part of what takes it is not
// counted: see Report.Missing. It is larger than any device; in JSON it is null.
const Unbounded alloc.Bytes = math.MaxInt64

// Term is one reason why an amount may be larger or smaller than its estimate. What is exact has no
// term: weights, keys and values, and the states of an optimizer.
type Term struct {
	Of     string      `json:"of"`         // what is uncertain, such as "activations"
	Reason string      `json:"reason"`     // why, with the option that says it if there is one
	Less   alloc.Bytes `json:"less_bytes"` // how much smaller it may be
	More   alloc.Bytes `json:"more_bytes"` // how much larger it may be
}

// String returns the term as text: "activations, -1.2 GiB to +512.0 MiB: how long each tensor lives is modelled".
func (t Term) String() string {
	return fmt.Sprintf("%s, -%v to +%v: %s", t.Of, t.Less, t.More, t.Reason)
}

// amounts is a set of the amounts of a Memory that have bounds.
type amounts uint8

const (
	ofPeak amounts = 1 << iota
	ofAllocated
	ofReserved
	ofDevice
	ofNeeded

	ofTensors  = ofPeak | ofBlocks                   // a tensor is in a block
	ofBlocks   = ofAllocated | ofSegments | ofNeeded // a block is in a segment
	ofSegments = ofReserved | ofDevice               // what is inactive in a segment is given back where the device is small
	ofContext  = ofDevice | ofNeeded                 // outside of the allocator
)

// term is a Term with the amounts that it is a part of.
type term struct {
	Term

	in amounts
}

// doubt adds a term, unless it is empty.
func (m *Memory) doubt(in amounts, of, reason string, less, more alloc.Bytes) {
	if less = max(0, less); less > 0 || more > 0 {
		m.terms = append(m.terms, term{Term{of, reason, less, max(0, more)}, in})
	}
}

// bounded is an amount with the bounds that its terms give it. It is never below what is exact.
func (m *Memory) bounded(n alloc.Bytes, in amounts, exact alloc.Bytes) Value {
	v := Value{Bytes: n, Lower: n, Upper: n}
	for _, t := range m.terms {
		if t.in&in != 0 {
			v.Lower, v.Upper = v.Lower-t.Less, v.Upper+t.More
		}
	}
	v.Lower = max(v.Lower, min(n, exact))
	return v
}

// settle gives all amounts their bounds, when nothing adds a term any more. If a part is missing, none has an upper one.
func (m *Memory) settle(missing bool) {
	exact := m.held()
	m.Peak = m.bounded(m.Peak.Bytes, ofPeak, exact)
	asked := ofPeak
	if f := &m.Footprint; f.Device.Bytes > 0 {
		asked = ofNeeded
		f.Allocated = m.bounded(f.Allocated.Bytes, ofAllocated, exact)
		f.Reserved = m.bounded(f.Reserved.Bytes, ofReserved, exact)
		f.Device = m.bounded(f.Device.Bytes, ofDevice, exact+f.Context.Lower)
		f.Needed = m.bounded(f.Needed.Bytes, ofNeeded, exact+f.Context.Lower)
		m.Peak.Upper = max(m.Peak.Upper, f.Allocated.Upper)
	}
	m.Uncertain = nil
	for _, t := range m.terms {
		if t.in&asked != 0 {
			m.Uncertain = append(m.Uncertain, t.Term)
		}
	}
	slices.SortStableFunc(m.Uncertain, func(a, b Term) int { return cmp.Compare(b.More, a.More) })
	if missing {
		m.Peak.Upper = Unbounded
		for _, v := range []*Value{&m.Footprint.Allocated, &m.Footprint.Reserved, &m.Footprint.Device, &m.Footprint.Needed} {
			if v.Bytes > 0 {
				v.Upper = Unbounded
			}
		}
	}
}

// bounds are the bounds of the peak's tensors alone, as fractions of it.
func (m *Memory) bounds() errorBounds {
	n := m.Peak.Bytes
	if n == 0 {
		return errorBounds{}
	}
	v := m.bounded(n, ofPeak, m.held())
	return errorBounds{Below: 1 - float64(v.Lower)/float64(n), Above: float64(v.Upper)/float64(n) - 1}
}

// valueJSON is a Value in JSON.
type valueJSON struct {
	Bytes alloc.Bytes  `json:"bytes"`
	Lower alloc.Bytes  `json:"lower_bytes"`
	Upper *alloc.Bytes `json:"upper_bytes"`
}

// MarshalJSON writes null for an Upper that is Unbounded.
func (f Value) MarshalJSON() ([]byte, error) {
	w := valueJSON{f.Bytes, f.Lower, &f.Upper}
	if f.Upper == Unbounded {
		w.Upper = nil
	}
	return json.Marshal(w)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (f *Value) UnmarshalJSON(text []byte) error {
	var w valueJSON
	if err := json.Unmarshal(text, &w); err != nil {
		return err
	}
	*f = Value{w.Bytes, w.Lower, Unbounded}
	if w.Upper != nil {
		f.Upper = *w.Upper
	}
	return nil
}

// Missing is an Option that names parts which run beside the layers and are not counted, such as "the autoencoder". No
// amount has an upper bound then, and the model fits nowhere for certain.
func Missing(parts ...string) Option {
	return option(func(c *setting.Config) { c.Missing = append(c.Missing, parts...) })
}

// MissingTower is what is Missing of a model that also reads images or sound while it reads none: only the weights of its tower
// are in the values.
const MissingTower = "what the tower of images or sound needs to run"

// TextAlone is an Option for models that also read images or sound: no text has any but those of the inputs. Without it, a
// tower through which none runs is Missing, as it needs more than its weights once it runs.
func TextAlone() Option { return option(func(c *setting.Config) { c.TextAlone = true }) }
