package top

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	line "github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// topView is what the user has chosen to see.
type topView struct {
	order    topOrder
	pid      int // the selected process
	device   string
	first    int        // the process in the first row
	paused   *topSample // the sample that stays on the screen; nil if the screen is not paused
	help     bool
	attach   int // the process that a key asked to attach to or to detach from
	pageRows int // rows for processes when they were last drawn
}

const topHelp = `Keys

  q, Ctrl+C       quit
  up, down, k, j  select a process
  PgUp, PgDn      select one a page away
  Home, End       select the first or the last
  m, p, g, c      sort by memory, process number, GPU, command
  r               turn the order
  a               attach to the process and show its lines of code; again: let go
  space           hold the picture, and go on
  ?, h            this help, and back

Below the processes stand the lines of code of the selected one, if it serves a live page
that --live names, or if you attach to it: gpumemtrack attach --help says what that needs.
The small bars of a device are its memory at the latest updates, and how busy it was.`

// lines returns the rows of the screen.
func (v *topView) lines(sample topSample, width, height int) []topLine {
	if v.paused != nil {
		sample = *v.paused
	}
	lines := []topLine{headLine(sample, width)}
	if v.help {
		for text := range strings.SplitSeq(topHelp, "\n") {
			lines = append(lines, styled(styleText, "%s", cli.Elide(text, width)))
		}
		return lines[:min(len(lines), height)]
	}
	devices := deviceLines(sample, width)
	if most := max(1, height/3); len(devices) > most {
		hidden := len(devices) - (most - 1)
		devices = append(devices[:most-1:most-1], styled(styleQuiet, "… %d more lines", hidden))
	}
	lines = append(append(lines, devices...), processHead(v.order, width))
	processes := processesOf(sample, v.order)
	at := v.find(processes)
	detail := v.detail(sample, processes, at, width, max(1, (height-len(lines))/2))
	rows := max(1, height-len(lines)-len(detail)-1)
	lines = append(lines, v.processes(sample, processes, at, rows, width)...)
	lines = append(append(lines, nil), detail...)
	return lines[:min(len(lines), height)]
}

// find returns the index of the selected process, or 0 if it is gone.
func (v *topView) find(processes []topProcess) int {
	at := slices.IndexFunc(processes, func(p topProcess) bool { return p.PID == v.pid && p.Device == v.device })
	return max(at, 0)
}

func (v *topView) processes(sample topSample, all []topProcess, at, rows, width int) []topLine {
	v.pageRows = rows
	if len(all) == 0 {
		return []topLine{noProcess(sample)}
	}
	v.first = max(0, min(v.first, at, len(all)-rows))
	if at >= v.first+rows {
		v.first = at - rows + 1
	}
	var lines []topLine
	for i := v.first; i < min(len(all), v.first+rows); i++ {
		lines = append(lines, processLine(all[i], width, i == at))
	}
	return lines
}

// detail shows the page of the selected process, and pages that do not answer, in no more than most
// lines.
func (v *topView) detail(sample topSample, processes []topProcess, at, width, most int) []topLine {
	var lines []topLine
	for _, page := range sample.Pages {
		if page.Err != nil || !page.Known {
			lines = append(lines, pageLines(page, width, most)...)
		} else if at < len(processes) && page.Origin.PID == processes[at].PID {
			lines = append(pageLines(page, width, most-1), lines...)
		}
	}
	if len(sample.Pages) == 0 {
		lines = []topLine{styled(styleQuiet, "%s", cli.Elide("a attaches to the process and shows its lines; --live URL shows a live page", width))}
	}
	if at < len(processes) && processes[at].Container != "" {
		lines = append([]topLine{styled(styleText, "%s", cli.Elide(fmt.Sprintf("%d runs in %s", processes[at].PID, line.Line(processes[at].Container)), width))}, lines...)
	}
	return lines[:min(len(lines), most)]
}

// press does what a key means, and reports whether that is to quit.
func (v *topView) press(key rune, sample topSample) (quit bool) {
	switch key {
	case 'q', ctrlC:
		return true
	case '?', 'h':
		v.help = !v.help
	case 'm', 'p', 'g', 'c':
		v.order = topOrder{by: byte(key), reversed: v.order.reversed && v.order.by == byte(key)}
	case 'r':
		v.order.reversed = !v.order.reversed
	case ' ':
		if v.paused != nil {
			v.paused = nil
		} else {
			v.paused = &sample
		}
	case 'a':
		if v.paused != nil {
			sample = *v.paused
		}
		if processes := processesOf(sample, v.order); len(processes) > 0 {
			p := processes[v.find(processes)]
			v.pid, v.device, v.attach = p.PID, p.Device, p.PID
		}
	case escape:
		v.help = false
	default:
		v.move(key, sample)
	}
	return false
}

// Keys that are not letters.
const (
	ctrlC    rune = 0x03
	escape   rune = 0x1b
	keyUp    rune = -1
	keyDown  rune = -2
	pageUp   rune = -3
	pageDown rune = -4
	home     rune = -5
	end      rune = -6
	tab      rune = '\t'
)

func (v *topView) move(key rune, sample topSample) {
	by, ok := map[rune]int{
		keyUp: -1, 'k': -1, keyDown: 1, 'j': 1, tab: 1, pageUp: -v.pageRows, pageDown: v.pageRows, home: -1 << 30, end: 1 << 30,
	}[key]
	if v.paused != nil {
		sample = *v.paused
	}
	processes := processesOf(sample, v.order)
	if !ok || len(processes) == 0 {
		return
	}
	at := v.find(processes) + by
	if key == tab {
		at %= len(processes)
	}
	p := processes[min(max(at, 0), len(processes)-1)]
	v.pid, v.device = p.PID, p.Device
}

// topStyle is how a piece of text looks.
type topStyle uint8

const (
	styleText topStyle = iota
	styleHead
	styleQuiet
	styleLow  // a bar of memory that is mostly free
	styleHigh // more than three quarters
	styleFull // more than nine tenths
	styleWarn
	styleSelected
)

type topSpan struct {
	text  string
	style topStyle
}

// topLine is a row of the screen.
type topLine []topSpan

func (l topLine) text() string {
	var b strings.Builder
	for _, s := range l {
		b.WriteString(s.text)
	}
	return strings.TrimRight(b.String(), " ")
}

// width returns the number of columns that the line takes, with blanks.
func (l topLine) width() (n int) {
	for _, s := range l {
		n += len([]rune(s.text))
	}
	return n
}

func styled(style topStyle, format string, args ...any) topLine {
	return topLine{{fmt.Sprintf(format, args...), style}}
}

// topText returns everything that a sample has, in as many lines as it needs.
func topText(sample topSample, width int) []topLine {
	lines := []topLine{headLine(sample, width)}
	lines = append(lines, deviceLines(sample, width)...)
	lines = append(lines, nil, processHead(topOrder{}, width))
	processes := processesOf(sample, topOrder{})
	for _, p := range processes {
		lines = append(lines, processLine(p, width, false))
	}
	if len(processes) == 0 {
		lines = append(lines, noProcess(sample))
	}
	for _, page := range sample.Pages {
		lines = append(append(lines, nil), pageLines(page, width, 10)...)
	}
	return lines
}

func noProcess(sample topSample) topLine {
	if sample.Waiting {
		return styled(styleQuiet, "  waiting for the driver")
	}
	return styled(styleQuiet, "  the driver lists no process with memory there")
}

func headLine(sample topSample, width int) topLine {
	left := fmt.Sprintf("%s top  %s  %s", cli.ProgramName, sample.Time.Format("15:04:05"), line.Line(sample.Source))
	if sample.Silent > 2*time.Second {
		return topLine{{left + "  ", styleHead}, {fmt.Sprintf("the driver has not answered for %.0f s", sample.Silent.Seconds()), styleWarn}}
	}
	const help = "q quit  ? help"
	space := width - len([]rune(left)) - len(help)
	if space < 2 {
		return topLine{{left, styleHead}}
	}
	return topLine{{left, styleHead}, {strings.Repeat(" ", space) + help, styleQuiet}}
}

// deviceLines returns a line for each device: its name, a bar, and as many values as fit.
func deviceLines(sample topSample, width int) []topLine {
	var lines []topLine
	var warnings cli.Warnings
	label := 5
	for _, d := range sample.Devices {
		label = max(label, len(d.Label()))
	}
	for _, d := range sample.Devices {
		lines = append(lines, deviceLine(d, label, width))
		if d.Err != nil {
			warnings.Add(d.Device, ": "+line.Line(d.Err.Error()))
		}
		if d.ProcessesErr != nil {
			warnings.Add(d.Device, ": processes: "+line.Line(d.ProcessesErr.Error()))
		}
	}
	for _, warning := range warnings.Lines() {
		lines = append(lines, styled(styleWarn, "  %s", warning))
	}
	return lines
}

func deviceLine(d topDevice, label, width int) topLine {
	used, ok := d.Value(nvml.MemoryUsed)
	total, known := d.Value(nvml.MemoryTotal)
	name := 12
	sensors := ""
	if width >= 100 {
		name = 24
		sensors = fmt.Sprintf("  %5s  %5s  %6s", sensor(d, nvml.Utilization, "%"), sensor(d, nvml.Temperature, "°C"), sensor(d, nvml.Power, "W"))
	}
	memory := fmt.Sprintf("%23s %6s", "unknown", "")
	share := 0.0
	if ok && known && total > 0 {
		share = used / total
		memory = fmt.Sprintf("%10v / %10v %6s", alloc.Bytes(used), alloc.Bytes(total), fmt.Sprintf("%.0f %%", 100*share))
	}
	left := fmt.Sprintf("%-*s  %-*s ", label, d.Label(), name, cli.Elide(line.Line(d.Name), name))
	past := pastLine(d, width)
	room := width - len([]rune(left)) - len([]rune(memory)) - len([]rune(sensors)) - 3 - past.width()
	out := append(append(topLine{{left, styleText}}, bar(share, room)...), topSpan{" " + memory + sensors, styleText})
	return append(out, past...)
}

// pastLine draws how full and how busy a device was lately, if it fits.
func pastLine(d topDevice, width int) (past topLine) {
	const samples = 20
	for i, shares := range [][]float64{d.memory, d.busy} {
		if width >= 120+40*i && len(shares) > 1 {
			past = append(append(past, topSpan{"  ", styleText}), historyBars(shares, samples)...)
		}
	}
	return past
}

// bar draws a fraction as a bar in brackets, as wide as width without them.
func bar(share float64, width int) topLine {
	if width < 4 {
		return nil
	}
	full := min(width, int(share*float64(width)+0.5))
	return topLine{{"[", styleQuiet}, {strings.Repeat("|", full), styleOf(share)}, {strings.Repeat(" ", width-full), styleText}, {"]", styleQuiet}}
}

// styleOf returns the style for a fraction.
func styleOf(share float64) topStyle {
	switch {
	case share > 0.9:
		return styleFull
	case share > 0.75:
		return styleHigh
	}
	return styleLow
}

func sensor(d topDevice, q nvml.Quantity, unit string) string {
	v, ok := d.Value(q)
	if !ok {
		return "-"
	}
	return fmt.Sprintf("%.0f %s", v, unit)
}

// topOrder says how processes are sorted; the zero value sorts by memory, most first.
type topOrder struct {
	by       byte // one of the keys m, p, g, c; 0 means m
	reversed bool
}

// processesOf lists the processes of all devices, and those that only a live page knows.
func processesOf(sample topSample, order topOrder) []topProcess {
	var all []topProcess
	seen := make(map[int]bool)
	for _, d := range sample.Devices {
		for _, p := range d.Processes {
			seen[p.PID] = true
			all = append(all, p)
		}
	}
	for _, page := range sample.Pages {
		if page.Known && !seen[page.Origin.PID] {
			seen[page.Origin.PID] = true
			all = append(all, topProcess{PID: page.Origin.PID, Device: "-", Memory: page.Live, SM: -1, Command: page.Origin.Program, processFacts: unknownProcess})
		}
	}
	slices.SortStableFunc(all, func(x, y topProcess) int {
		c := 0
		switch order.by {
		case 'p':
			c = cmp.Compare(x.PID, y.PID)
		case 'g':
			c = cmp.Compare(x.Device, y.Device)
		case 'c':
			c = cmp.Compare(x.Command, y.Command)
		}
		c = cmp.Or(c, cmp.Compare(y.Memory, x.Memory), cmp.Compare(x.PID, y.PID))
		if order.reversed {
			return -c
		}
		return c
	})
	return all
}

func processHead(order topOrder, width int) topLine {
	mark := func(key byte, name string) string {
		if order.by == key || order.by == 0 && key == 'm' {
			return name + map[bool]string{false: "↓", true: "↑"}[order.reversed]
		}
		return name
	}
	return styled(styleHead, "  %8s  %-12s %11s %7s  %s%s", mark('p', "PID"), mark('g', "GPU"), mark('m', "MEMORY"), "SHARE",
		factCells("USER", "CPU", "SM", "AGE", "CONTAINER", width), mark('c', "COMMAND"))
}

// factCells returns the columns with the system's facts about a process, as many as fit.
func factCells(user, cpu, sm, age, container string, width int) string {
	cells := ""
	if width >= 80 {
		cells = fmt.Sprintf("%-8s %6s  ", cli.Elide(user, 8), cpu)
	}
	if width >= 100 {
		cells += fmt.Sprintf("%5s  %6s  ", sm, age)
	}
	if width >= 140 {
		cells += fmt.Sprintf("%-24s  ", cli.Elide(container, 24))
	}
	return cells
}

func processLine(p topProcess, width int, selected bool) topLine {
	memory, share := "unknown", "-"
	if p.Memory >= 0 {
		memory = p.Memory.String()
		if p.Total > 0 {
			share = fmt.Sprintf("%.1f %%", 100*float64(p.Memory)/p.Total)
		}
	}
	mark, style := " ", styleText
	if selected {
		mark, style = ">", styleSelected
	}
	text := fmt.Sprintf("%s %8d  %-12s %11s %7s  ", mark, p.PID, p.Device, memory, share)
	text += factCells(cmp.Or(line.Line(p.User), "-"), percentCell(p.CPU), percentCell(p.SM), ageCell(p.Age), cmp.Or(line.Line(p.Container), "-"), width)
	text += cli.Fit(line.Line(p.Command), max(8, width-len([]rune(text))+1))
	return topLine{{fmt.Sprintf("%-*s", width, text), style}}
}

// pageLines shows a live page, with no more than most lines of code.
func pageLines(page topPage, width, most int) []topLine {
	url := line.Line(page.URL)
	switch {
	case page.Err != nil:
		return []topLine{styled(styleWarn, "%s", cli.Elide(line.Line(page.Err.Error()), width))}
	case page.Attached && !page.Known:
		return []topLine{styled(styleQuiet, "attaching to %d", page.Origin.PID)}
	case page.Attached && page.Device == "":
		return []topLine{styled(styleHead, "%s", cli.Elide(fmt.Sprintf("%s: it has not called the CUDA driver since", url), width))}
	case !page.Known:
		return []topLine{styled(styleQuiet, "%s has not answered yet", url)}
	}
	head := fmt.Sprintf("%s, %s: %v live, peak %v", page.Origin, page.Device, page.Live, page.Peak)
	if page.Attached {
		head = fmt.Sprintf("%s: %v live of what it allocated since, on its %s", url, page.Live, page.Device)
	}
	lines := []topLine{styled(styleHead, "%s", cli.Elide(head, width))}
	for _, s := range page.Suspects[:min(len(page.Suspects), max(1, most/2))] {
		lines = append(lines, styled(styleWarn, "%s", cli.Elide("  suspect: "+line.Line(s), width)))
	}
	for _, l := range page.Sites {
		if len(lines) > most {
			break
		}
		text := fmt.Sprintf("  %11v %9d  ", l.After.Bytes, l.After.Count)
		lines = append(lines, styled(styleText, "%s", text+cli.Elide(line.Line(l.Key), max(8, width-len(text)))))
	}
	return lines
}

// historyBars draws the latest fractions as bars, the last at the right. Unknown values are blank.
func historyBars(shares []float64, columns int) topLine {
	bars := []rune("▁▂▃▄▅▆▇█")
	shares = shares[max(0, len(shares)-columns):]
	line := topLine{{strings.Repeat(" ", columns-len(shares)), styleText}}
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
