package recordings

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// maxLine bounds a line. What is longer is no sample.
const maxLine = 1 << 20

// maxCells bounds the columns of a table.
const maxCells = 1 << 12

// readTables reads the tables of nvidia-smi and its kin in a text that may have other lines too.
func readTables(in *bufio.Reader, f *feed) error {
	t := &tables{feed: f, clock: parser{location: f.config.Location}}
	if f.config.Columns != "" {
		t.begin(splitHeader(f.config.Columns), ",")
		if t.layout == nil {
			return errors.New("columns " + strconv.Quote(shorten(f.config.Columns)) + ": none is a column of GPU memory, as nvidia-smi --help-query-gpu names them")
		}
		t.fixed = true
	}
	for number := 1; ; number++ {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			err = skipLine(in)
			f.other("a line of more than 1 MiB", number)
			if err == nil {
				continue
			}
		} else if text := bytes.TrimSpace(line); len(text) > 0 {
			t.number = number
			if err := t.line(string(text), err == nil); err != nil {
				return fmt.Errorf("line %d: %w", number, err)
			}
		}
		if errors.Is(err, io.EOF) {
			return t.end()
		}
		if err != nil {
			return err
		}
	}
}

func skipLine(in *bufio.Reader) error {
	for {
		_, err := in.ReadSlice('\n')
		if !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

// tables reads line after line. Rows of a table are kept until there are enough to tell what the
// columns are, if the file does not say it, and which rows belong to one moment.
type tables struct {
	*feed
	clock   parser
	summary summary
	number  int
	fixed   bool // the columns are given by the options

	separator string // between cells: ", ", ",", ";", a tab, or " " for blanks
	header    string // the text of the header, which may come again
	layout    *layout
	turns     turns
	rows      []row // kept
	settled   bool  // rows are no longer kept
	cells     []string
}

// row is a row of a table.
type row struct {
	cells    []string
	at       moment
	complete bool
}

// kept is how many rows are kept at most to learn from, and keptBytes how much text.
const (
	keptRows  = 512
	keptBytes = 1 << 22
)

func (t *tables) line(text string, complete bool) error {
	if text == t.header {
		return nil
	}
	if text[0] == '|' || text[0] == '+' || !t.settled && text[0] >= 'A' && text[0] <= 'Z' || t.format == formatSummary {
		if done, err := t.summary.line(t.feed, &t.clock, text); done || err != nil {
			return err
		}
	}
	if strings.HasPrefix(text, "#") {
		if done, err := t.comment(text); done || err != nil {
			return err
		}
		if text = strings.TrimSpace(strings.TrimLeft(text, "#")); text == "" {
			return nil
		}
	}
	if !t.fixed && (t.layout == nil && t.separator == "" || mayBeHeader(text)) {
		if cells, separator := splitAny(text); len(cells) <= maxCells {
			if _, ok := layoutOf(cells, meaningOf); ok && !looksLikeData(cells) {
				if err := t.flush(); err != nil {
					return err
				}
				t.header = text
				t.begin(cells, separator)
				return nil
			}
			if t.separator == "" && slices.ContainsFunc(cells, isMemory) {
				t.separator = separator // perhaps a table without a header
			}
		}
	}
	cells := t.split(text)
	if t.layout == nil && !t.fits(cells) || t.layout != nil && len(cells) != t.layout.width {
		t.other(text, t.number)
		return nil
	}
	return t.row(cells, complete)
}

// comment reads a line that begins with #, as the two lines of dmon's and pmon's header do. It returns false for another one.
func (t *tables) comment(text string) (done bool, err error) {
	separator := " "
	if strings.Contains(text, ",") {
		separator = ","
	}
	text = strings.TrimSpace(strings.TrimLeft(text, "#"))
	t.cells = splitAt(t.cells[:0], text, separator)
	if len(t.cells) == 0 || len(t.cells) > maxCells {
		return len(t.cells) > 0, nil
	}
	for i, c := range t.cells {
		t.cells[i] = strings.ToLower(c)
	}
	switch t.cells[0] {
	case "idx", "yyyymmdd", "hh:mm:ss", "hh:mm:ss:ms":
		return true, nil // the units, which are always the same
	}
	l, ok := layoutOf(t.cells, func(name string) (meaning, bool) { m, ok := monitorMeanings[name]; return m, ok })
	if _, indexed := l.columnOf(indexRole); !ok || !indexed || text == t.header {
		return ok && text == t.header, nil
	}
	if err := t.flush(); err != nil {
		return true, err
	}
	if l.format = formatDmon; l.groups[0].hasProcess {
		l.format = formatPmon
	}
	t.header, t.layout, t.separator, t.settled = text, l, separator, true
	t.format = l.format
	return true, nil
}

func (l *layout) columnOf(r role) (int, bool) {
	if l == nil {
		return 0, false
	}
	return l.column(r)
}

// begin begins a table with these columns.
func (t *tables) begin(cells []string, separator string) {
	l, ok := layoutOf(cells, meaningOf)
	if !ok {
		return
	}
	t.layout, t.separator, t.turns = l, separator, turns{}
	t.settled = l.identifies() || l.groups[0].hasProcess
	if t.format == "" {
		t.format = l.format
	}
}

// mayBeHeader reports whether a line has a word that each header has. It spares most rows a closer look.
func mayBeHeader(text string) bool {
	if text[0] >= '0' && text[0] <= '9' {
		return false
	}
	return slices.ContainsFunc([]string{"mem", "Mem", "util", "power", "Power", "temp", "Temp", "vram", "VRAM", "pid", "gfx", "GPU use"}, func(word string) bool { return strings.Contains(text, word) })
}

// looksLikeData reports whether a cell has a value with a unit, which no name of a column has.
func looksLikeData(cells []string) bool {
	for _, c := range cells {
		if _, unit, ok := number(c); ok && (unit == "" || unit == "MiB" || unit == "%" || unit == "W") {
			return true
		}
	}
	return false
}

// split cuts a line at the table's separator.
func (t *tables) split(text string) []string {
	if t.separator == " " && t.layout != nil {
		t.cells = splitAt(t.cells[:0], text, " ")
		if w := t.layout.width; len(t.cells) > w && t.layout.format == formatPmon { // the name of a command may have blanks
			t.cells = t.cells[:w]
		}
		return t.cells
	}
	t.cells = splitAt(t.cells[:0], text, t.separator)
	return t.cells
}

// splitHeader splits names that may have blanks behind the commas.
func splitHeader(text string) []string { return splitAt(nil, text, ",") }

// splitAny splits a line at the separator that it has. In the lines of nvidia-smi each comma has a blank behind it, so that a
// decimal comma separates nothing.
func splitAny(text string) (cells []string, separator string) {
	separator = ","
	switch {
	case strings.Contains(text, ";") && !strings.Contains(text, ","):
		separator = ";"
	case strings.Contains(text, "\t") && !strings.Contains(text, ","):
		separator = "\t"
	case strings.Contains(text, ", ") && strings.Count(text, ", ") == strings.Count(text, ","):
		separator = ", "
	}
	return splitAt(nil, text, separator), separator
}

// splitAt appends the cells of a line. Of a hostile one no more than maxCells and one.
func splitAt(cells []string, text, separator string) []string {
	switch {
	case separator == " ":
		for field := range strings.FieldsSeq(text) {
			if cells = append(cells, field); len(cells) > maxCells {
				break
			}
		}
		if cells == nil {
			cells = append(cells, "")
		}
		return cells
	case strings.Contains(text, `"`) && len(separator) > 0:
		r := csv.NewReader(strings.NewReader(text))
		r.Comma, r.LazyQuotes, r.TrimLeadingSpace = rune(separator[0]), true, true
		if quoted, err := r.Read(); err == nil {
			for _, c := range quoted[:min(len(quoted), maxCells+1)] {
				cells = append(cells, strings.TrimSpace(c))
			}
			return cells
		}
	}
	if separator == "" {
		return append(cells, text)
	}
	for cell := range strings.SplitSeq(text, separator) {
		if cells = append(cells, strings.TrimSpace(cell)); len(cells) > maxCells {
			break
		}
	}
	return cells
}

// row takes a row of the table. The cells are used again for the next.
func (t *tables) row(cells []string, complete bool) error {
	r := row{cells: cells, complete: complete}
	if t.layout != nil {
		r.at = t.timeOf(t.layout, cells)
	}
	if t.settled {
		return t.add(r)
	}
	r.cells = append([]string(nil), cells...)
	t.rows = append(t.rows, r)
	size := 0
	for _, c := range cells {
		size += len(c)
	}
	if len(t.rows) >= keptRows || len(t.rows)*size > keptBytes {
		return t.flush()
	}
	return nil
}

// flush adds the rows that were kept, now that the columns and the number of GPUs can be told.
func (t *tables) flush() error {
	rows := t.rows
	t.rows = nil
	if len(rows) == 0 {
		return nil
	}
	if t.layout == nil {
		var assumed string
		l, assumed, err := shapeOf(rows)
		if err != nil {
			return err
		}
		t.layout, t.assumed = l, assumed
		if t.format == "" {
			t.format = l.format
		}
		for i := range rows {
			rows[i].at = t.timeOf(l, rows[i].cells)
		}
	}
	if !t.layout.identifies() && !t.layout.groups[0].hasProcess {
		t.turns = turnsOf(rows, t.layout)
	}
	t.settled = true
	for _, r := range rows {
		if err := t.add(r); err != nil {
			return err
		}
	}
	return nil
}

func (t *tables) end() error { return t.flush() }

func (t *tables) timeOf(l *layout, cells []string) moment {
	at, ok := l.column(timeRole)
	if !ok || at >= len(cells) {
		return moment{}
	}
	text := cells[at]
	if date, ok := l.column(dateRole); ok && date < len(cells) {
		text = cells[date] + " " + text
	}
	return t.clock.parse(text)
}

// add adds the samples of a row.
func (t *tables) add(r row) error {
	if !r.complete && t.samples > 0 && isTorn(r.cells[len(r.cells)-1]) {
		return nil
	}
	for i := range t.layout.groups {
		g := &t.layout.groups[i]
		var reading nvml.Reading
		reading.Device = g.device
		if t.layout.format != formatNvitop {
			reading.Device = t.device(r)
		}
		pid := 0
		if at, ok := t.layout.column(pidRole); ok {
			n, err := strconv.Atoi(r.cells[at])
			if err != nil || n <= 0 {
				continue // a GPU without processes
			}
			pid = n
		}
		if err := t.group(&reading, g, r, pid); err != nil {
			return err
		}
	}
	return nil
}

func (t *tables) group(reading *nvml.Reading, g *group, r row, pid int) error {
	var asked [16]nvml.Quantity
	n := 0
	for _, c := range g.columns {
		if !t.set(reading, c.quantity, r.cells[c.at], c.unit) && n < len(asked) {
			asked[n] = c.quantity
			n++
		}
	}
	if len(g.columns) == 0 {
		return nil
	}
	return t.feed.add(r.at, usedAlone(reading), pid, asked[:n]...)
}

// usedAlone leaves out what is free and reserved where it is known what is used: both follow from it.
func usedAlone(r *nvml.Reading) *nvml.Reading {
	if _, ok := r.Value(nvml.MemoryUsed); !ok {
		return r
	}
	out := nvml.Reading{Device: r.Device}
	for q := nvml.MemoryUsed; q <= nvml.ClockVideo; q++ {
		if v, ok := r.Value(q); ok && q != nvml.MemoryFree && q != nvml.DriverReserved {
			out.Set(q, v)
		}
	}
	return &out
}

// isTorn reports whether the last cell of a file may lack its end: it has no unit behind its number.
func isTorn(cell string) bool {
	_, unit, ok := number(cell)
	return !ok || unit != "MiB" && unit != "%" && unit != "W" && unit != "MHz"
}

// device returns the GPU of a row.
func (t *tables) device(r row) nvml.Device {
	d := nvml.Device{Index: -1}
	cell := func(of role) string {
		if at, ok := t.layout.column(of); ok {
			if c := r.cells[at]; !isMissing(c) {
				return c
			}
		}
		return ""
	}
	d.UUID, d.BusID, d.Name = cell(uuidRole), cell(busRole), cell(nameRole)
	switch index := cell(indexRole); {
	case index != "":
		d.Index, d.UUID = indexOf(index, d.UUID)
	case d.UUID == "" && d.BusID == "" && t.turns.gpus > 1:
		d.Index = t.turns.next(r.at, d.Name)
	}
	return d
}

// indexOf returns the number in a cell: "0", "card0", "GPU 0", "cuda:0". Another text identifies the GPU as a UUID does.
func indexOf(cell, uuid string) (int, string) {
	digits := len(cell)
	for digits > 0 && cell[digits-1] >= '0' && cell[digits-1] <= '9' {
		digits--
	}
	const most = 4
	if n := len(cell) - digits; n > 0 && n <= most && (digits == 0 || len(cell) <= len("device 0000")) && strings.Trim(strings.ToLower(cell[:digits]), "cardgpuevi: _") == "" {
		index, _ := strconv.Atoi(cell[digits:])
		return index, uuid
	}
	if uuid == "" {
		uuid = cell
	}
	return -1, uuid
}
