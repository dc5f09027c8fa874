package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// Remarks are sentences about GPUs. Each is printed once, with all GPUs that it is true of. The zero value has none.
type Remarks struct {
	texts []string
	of    map[string][]nvml.Device
}

// Add adds what follows a GPU's name, as in ": it does not answer".
func (r *Remarks) Add(d nvml.Device, text string) {
	if r.of == nil {
		r.of = make(map[string][]nvml.Device)
	}
	if _, ok := r.of[text]; !ok {
		r.texts = append(r.texts, text)
	}
	if !slices.Contains(r.of[text], d) {
		r.of[text] = append(r.of[text], d)
	}
}

// Lines returns the remarks in their order.
func (r *Remarks) Lines() (all []string) {
	for _, text := range r.texts {
		all = append(all, labels(r.of[text])+text)
	}
	return all
}

// labels names several GPUs: "GPU 0 to 15", "GPU 1, 3, 5 to 7", "GPU 0 MIG 1, GPU 0 MIG 2".
func labels(devices []nvml.Device) string {
	var all []string
	whole := 0 // of the GPUs before, those that are no part of another
	for i := 0; i < len(devices); i++ {
		d := devices[i]
		if d.Parent != "" {
			all = append(all, d.Label())
			continue
		}
		last := i
		for last+1 < len(devices) && devices[last+1].Parent == "" && devices[last+1].Index == devices[last].Index+1 {
			last++
		}
		label := d.Label()
		if whole > 0 {
			label = fmt.Sprint(d.Index)
		}
		switch last - i {
		case 0:
		case 1:
			label += fmt.Sprintf(", %d", devices[last].Index)
		default:
			label += fmt.Sprintf(" to %d", devices[last].Index)
		}
		all, i = append(all, label), last
		whole++
	}
	return strings.Join(all, ", ")
}
