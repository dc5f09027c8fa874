package top

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	line "github.com/gpumemtrack/gpumemtrack/internal/text"
)

// topView is what the user has chosen to see.
type topView struct {
	order    topOrder
	pid      int // the selected process
	device   string
	first    int      // the process in the first row
	held     *topLook // the look that the user froze; nil if none
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
func (v *topView) lines(look topLook, width, height int) []topLine {
	if v.held != nil {
		look = *v.held
	}
	lines := []topLine{headLine(look, width)}
	if v.help {
		for text := range strings.SplitSeq(topHelp, "\n") {
			lines = append(lines, styled(styleText, "%s", cli.Elide(text, width)))
		}
		return lines[:min(len(lines), height)]
	}
	devices := deviceLines(look, width)
	if most := max(1, height/3); len(devices) > most {
		hidden := len(devices) - (most - 1)
		devices = append(devices[:most-1:most-1], styled(styleQuiet, "… %d more lines", hidden))
	}
	lines = append(append(lines, devices...), processHead(v.order, width))
	processes := processesOf(look, v.order)
	at := v.find(processes)
	detail := v.detail(look, processes, at, width, max(1, (height-len(lines))/2))
	room := max(1, height-len(lines)-len(detail)-1)
	lines = append(lines, v.processes(look, processes, at, room, width)...)
	lines = append(append(lines, nil), detail...)
	return lines[:min(len(lines), height)]
}

// find returns the index of the selected process, or 0 if it is gone.
func (v *topView) find(processes []topProcess) int {
	at := slices.IndexFunc(processes, func(p topProcess) bool { return p.PID == v.pid && p.Device == v.device })
	return max(at, 0)
}

func (v *topView) processes(look topLook, all []topProcess, at, room, width int) []topLine {
	v.pageRows = room
	if len(all) == 0 {
		return []topLine{noProcess(look)}
	}
	v.first = max(0, min(v.first, at, len(all)-room))
	if at >= v.first+room {
		v.first = at - room + 1
	}
	var lines []topLine
	for i := v.first; i < min(len(all), v.first+room); i++ {
		lines = append(lines, processLine(all[i], width, i == at))
	}
	return lines
}

// detail shows the page of the selected process, and pages that do not answer, in no more than most
// lines.
func (v *topView) detail(look topLook, processes []topProcess, at, width, most int) []topLine {
	var lines []topLine
	for _, page := range look.Pages {
		if page.Err != nil || !page.Known {
			lines = append(lines, pageLines(page, width, most)...)
		} else if at < len(processes) && page.Origin.PID == processes[at].PID {
			lines = append(pageLines(page, width, most-1), lines...)
		}
	}
	if len(look.Pages) == 0 {
		lines = []topLine{styled(styleQuiet, "%s", cli.Elide("a attaches to the process and shows its lines; --live URL shows a live page", width))}
	}
	if at < len(processes) && processes[at].Container != "" {
		lines = append([]topLine{styled(styleText, "%s", cli.Elide(fmt.Sprintf("%d runs in %s", processes[at].PID, line.Line(processes[at].Container)), width))}, lines...)
	}
	return lines[:min(len(lines), most)]
}

// press does what a key means, and reports whether that is to quit.
func (v *topView) press(key rune, look topLook) (quit bool) {
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
		if v.held != nil {
			v.held = nil
		} else {
			v.held = &look
		}
	case 'a':
		if v.held != nil {
			look = *v.held
		}
		if processes := processesOf(look, v.order); len(processes) > 0 {
			p := processes[v.find(processes)]
			v.pid, v.device, v.attach = p.PID, p.Device, p.PID
		}
	case escape:
		v.help = false
	default:
		v.move(key, look)
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

func (v *topView) move(key rune, look topLook) {
	by, ok := map[rune]int{
		keyUp: -1, 'k': -1, keyDown: 1, 'j': 1, tab: 1, pageUp: -v.pageRows, pageDown: v.pageRows, home: -1 << 30, end: 1 << 30,
	}[key]
	if v.held != nil {
		look = *v.held
	}
	processes := processesOf(look, v.order)
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
