package recordings

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// The shapes of cells that need no name.
var (
	uuidShape = regexp.MustCompile(`^(GPU|MIG)-[0-9a-fA-F-]{8,}`)
	busShape  = regexp.MustCompile(`^[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]$`)
)

// fits reports whether a line may be a row of a table without a header: a cell has an amount of memory with its unit, and the
// rows before it had as many cells.
func (t *tables) fits(cells []string) bool {
	if len(cells) > maxCells || len(t.rows) > 0 && len(cells) != len(t.rows[0].cells) {
		return false
	}
	return slices.ContainsFunc(cells, isMemory) || len(t.rows) > 0 && slices.ContainsFunc(cells, isMissing)
}

func isMemory(cell string) bool {
	_, unit, ok := number(cell)
	return ok && (unit == "MiB" || unit == "MB" || unit == "GiB" || unit == "KiB")
}

// errColumns is the error of a table whose columns cannot be told apart.
var errColumns = errors.New("the file has no line with the names of its columns")

// shapeOf finds what the columns of a table without a header are. It says in a sentence what it assumes.
func shapeOf(rows []row) (*layout, string, error) {
	first := rows[0].cells
	l := &layout{format: formatQuery, width: len(first), roles: make(map[role]int), groups: []group{{device: nvml.Device{Index: -1}}}}
	var memory, percent, watts []int
	for i := range first {
		cell := firstKnown(rows, i)
		_, unit, isNumber := number(cell)
		switch {
		case new(parser).parse(cell).known:
			l.keep(timeRole, i)
		case uuidShape.MatchString(cell):
			l.keep(uuidRole, i)
		case busShape.MatchString(cell):
			l.keep(busRole, i)
		case isNumber && isMemory(cell):
			memory = append(memory, i)
		case isNumber && unit == "%":
			percent = append(percent, i)
		case isNumber && unit == "W":
			watts = append(watts, i)
		case !isNumber && strings.ContainsAny(cell, " ") && !isMissing(cell):
			l.keep(nameRole, i)
		}
	}
	const most = 16 // columns of memory that nvidia-smi has
	used, total, err := usedAndTotal(rows, memory[:min(len(memory), most)])
	if err != nil {
		return nil, "", err
	}
	g := &l.groups[0]
	assumed := []string{fmt.Sprintf("column %d is the memory used", used+1)}
	g.columns = append(g.columns, column{of(nvml.MemoryUsed, "MiB", 0), used})
	if total >= 0 {
		assumed = append(assumed, fmt.Sprintf("column %d the memory in total", total+1))
		g.columns = append(g.columns, column{of(nvml.MemoryTotal, "MiB", 0), total})
	}
	if len(percent) > 0 {
		assumed = append(assumed, fmt.Sprintf("column %d the utilization of the GPU", percent[0]+1))
		g.columns = append(g.columns, column{of(nvml.Utilization, "%", 0), percent[0]})
	}
	if len(watts) > 0 {
		g.columns = append(g.columns, column{of(nvml.Power, "W", 0), watts[0]})
	}
	return l, "the file has no line with the names of its columns: by their shape, " + strings.Join(assumed, ", "), nil
}

func (l *layout) keep(r role, at int) {
	if _, ok := l.roles[r]; !ok {
		l.roles[r] = at
	}
}

// firstKnown returns the first cell of a column that has a value.
func firstKnown(rows []row, column int) string {
	for _, r := range rows {
		if !isMissing(r.cells[column]) {
			return r.cells[column]
		}
	}
	return ""
}

// usedAndTotal finds which columns of memory are that used and the total; -1 if there is no total.
//
// The total never changes and is the largest. Of two further columns, used and free, that used is the one in which a GPU at
// rest has next to nothing. Where no row shows a GPU at rest, the two cannot be told apart.
func usedAndTotal(rows []row, memory []int) (used, total int, err error) {
	total = -1
	rest := slices.Clone(memory)
	if len(rest) > 1 {
		slices.SortStableFunc(rest, func(x, y int) int {
			a, b := extremes(rows, x), extremes(rows, y)
			if a.most != b.most {
				return int(math.Copysign(1, b.most-a.most))
			}
			return 0
		})
		if e := extremes(rows, rest[0]); e.constant {
			total, rest = rest[0], rest[1:]
		}
	}
	switch len(rest) {
	case 1:
		return rest[0], total, nil
	case 2, 3:
		whole := extremes(rows, total).most
		var idle []int
		for _, c := range rest {
			if total >= 0 && extremes(rows, c).least < whole*idleShare && !extremes(rows, c).isReserved(rows, c) {
				idle = append(idle, c)
			}
		}
		if len(idle) == 1 {
			return idle[0], total, nil
		}
	}
	var names []string
	for _, c := range memory {
		names = append(names, fmt.Sprint(c+1))
	}
	return 0, 0, fmt.Errorf("%w, and columns %s are all amounts of memory: name them with --columns, as in --columns timestamp,index,memory.used,memory.total", errColumns, strings.Join(names, ", "))
}

// idleShare is how much of a GPU's memory is in use at rest, at most: a context alone takes more.
const idleShare = 0.005

type extreme struct {
	least, most float64
	constant    bool // for each GPU: equal in all rows of one name
}

// isReserved reports whether a column is what the driver reserves: it never changes and is not zero.
func (e extreme) isReserved(rows []row, column int) bool {
	return len(rows) > 2 && e.constant && e.least > 0
}

func extremes(rows []row, column int) extreme {
	e := extreme{least: math.Inf(1), most: math.Inf(-1), constant: true}
	if column < 0 {
		return e
	}
	seen := make(map[float64]bool)
	for _, r := range rows {
		if v, unit, ok := number(r.cells[column]); ok {
			scale, _ := scaleOf(nvml.MemoryUsed, unit)
			v *= scale
			e.least, e.most = min(e.least, v), max(e.most, v)
			seen[v] = true
		}
	}
	const models = 2 // of GPUs in one machine
	e.constant = len(seen) <= models && (len(seen) == 1 || len(rows) > 4)
	return e
}

// turns tells which GPU a row belongs to where no column says it: nvidia-smi prints them in the order of their numbers at each moment.
type turns struct {
	gpus  int           // that each moment has
	pause time.Duration // a longer one separates moments; 0 if rows have no times
	at    int           // the next GPU
	last  time.Time
}

func (t *turns) next(at moment, _ string) int {
	if at.known && t.pause > 0 && !t.last.IsZero() && at.time.Sub(t.last) >= t.pause {
		t.at = 0
	}
	t.last = at.time
	n := t.at % t.gpus
	t.at = n + 1
	return n
}

// withinMoment is the longest time between two rows of one moment: nvidia-smi takes some milliseconds for each GPU.
const withinMoment = 50 * time.Millisecond

// maxTurns bounds the GPUs that are told apart by their turn.
const maxTurns = 64

// turnsOf finds how many rows belong to one moment, from their times or, without times, from the names of the GPUs.
func turnsOf(rows []row, l *layout) turns {
	var gaps []time.Duration
	for i := 1; i < len(rows); i++ {
		if !rows[i].at.known || !rows[i-1].at.known {
			return turns{gpus: turnsOfNames(rows, l)}
		}
		gaps = append(gaps, rows[i].at.time.Sub(rows[i-1].at.time))
	}
	if len(gaps) == 0 {
		return turns{gpus: 1}
	}
	sorted := slices.Clone(gaps)
	slices.Sort(sorted)
	pause := time.Duration(0)
	for i := 1; i < len(sorted); i++ { // the first place where gaps become much longer
		if sorted[i-1] <= withinMoment && sorted[i] > 4*max(sorted[i-1], time.Millisecond) {
			pause = sorted[i] / 2
			break
		}
	}
	if pause == 0 && sorted[len(sorted)-1] == 0 {
		return turns{gpus: min(len(rows), maxTurns)} // one moment
	}
	if pause == 0 {
		return turns{gpus: 1}
	}
	sizes := make(map[int]int)
	size, moments := 1, 0
	for _, gap := range gaps {
		if gap >= pause {
			sizes[size]++
			moments++
			size = 0
		}
		size++
	}
	if size == 1 || moments == 0 { // the last may be cut
		sizes[size]++
		moments++
	}
	for size, n := range sizes {
		if size > 1 && size <= maxTurns && 10*n >= 8*moments {
			return turns{gpus: size, pause: pause}
		}
	}
	return turns{gpus: 1}
}

// turnsOfNames returns after how many rows the names of the GPUs come again.
func turnsOfNames(rows []row, l *layout) int {
	at, ok := l.column(nameRole)
	if !ok {
		return 1
	}
	for n := 1; n <= min(maxTurns, len(rows)/2); n++ {
		periodic := true
		for i := n; i < len(rows) && periodic; i++ {
			periodic = rows[i].cells[at] == rows[i-n].cells[at]
		}
		if periodic {
			return n
		}
	}
	return 1
}
