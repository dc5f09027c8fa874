package top

import (
	"math"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// deviceHistory holds how full and how busy a device was at the last looks, as fractions; NaN means
// unknown.
type deviceHistory struct{ memory, busy []float64 }

// historyLength is how many looks are kept.
const historyLength = 60

func (h *deviceHistory) add(r nvml.Reading) {
	h.memory = addShare(h.memory, shareOf(r))
	busy, ok := r.Value(nvml.Utilization)
	if !ok {
		busy = math.NaN()
	}
	h.busy = addShare(h.busy, busy/100)
}

// addShare returns a new list: an earlier one may be on the screen.
func addShare(list []float64, share float64) []float64 {
	list = append(list[:len(list):len(list)], share)
	return list[max(0, len(list)-historyLength):]
}

// shareOf returns the fraction of a device's memory that is in use.
func shareOf(r nvml.Reading) float64 {
	used, ok := r.Value(nvml.MemoryUsed)
	total, known := r.Value(nvml.MemoryTotal)
	if !ok || !known || total <= 0 {
		return math.NaN()
	}
	return used / total
}

// historyBars draws the latest fractions as bars, the last at the right. Unknown values are blank.
func historyBars(shares []float64, room int) topLine {
	bars := []rune("▁▂▃▄▅▆▇█")
	shares = shares[max(0, len(shares)-room):]
	line := topLine{{strings.Repeat(" ", room-len(shares)), styleText}}
	for _, s := range shares {
		if math.IsNaN(s) {
			line = append(line, topSpan{" ", styleText})
			continue
		}
		at := min(max(0, int(s*float64(len(bars)))), len(bars)-1)
		line = append(line, topSpan{string(bars[at]), styleOf(s)})
	}
	return line
}
