package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// terminal returns the stream's file if somebody looks at it: no pipe, no file,
// no terminal that knows nothing but to print.
func terminal(stream any) (*os.File, bool) {
	if o, wrapped := stream.(*output); wrapped {
		stream = o.Writer
	}
	f, ok := stream.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
}

// size is that of a terminal in characters; zero where there is no limit.
type size struct{ width, height int }

// sizeOf returns a terminal's size, and zero of everything else.
func sizeOf(stream any) size {
	f, ok := terminal(stream)
	if !ok {
		return size{}
	}
	width, height, _ := term.GetSize(int(f.Fd())) // 0 where it is not known
	return size{width, height}
}

// widthOf returns a terminal's width in columns, and 0 of everything else.
func widthOf(stream any) int { return sizeOf(stream).width }

// holds reports whether all lines of a text can be seen at once, and the cursor
// below them.
func (s size) holds(text string) bool {
	return s.height <= 0 || strings.Count(text, "\n") < s.height
}

// cut leaves out the lines that the terminal does not hold, and says so.
func (s size) cut(text string) string {
	if s.holds(text) {
		return text
	}
	lines := strings.SplitAfter(text, "\n")
	shown := max(1, s.height-2)
	return strings.Join(lines[:shown], "") + fmt.Sprintf("… %d more lines\n", strings.Count(text, "\n")-shown)
}

// colored reports whether to color what goes to w: see https://no-color.org.
func colored(w io.Writer) bool {
	_, ok := terminal(w)
	return ok && os.Getenv("NO_COLOR") == ""
}

const (
	bold  = "\x1b[1m"
	cyan  = "\x1b[36m"
	red   = "\x1b[31m"
	green = "\x1b[32m"
	plain = "\x1b[0m"

	clearLine   = "\r\x1b[K"
	clearScreen = "\x1b[H\x1b[J"
)

func paint(text, color string, on bool) string {
	if !on {
		return text
	}
	return color + text + plain
}

// sparkline draws values as blocks of eight heights, from zero to the largest.
func sparkline(values []float64) string {
	blocks := []rune("▁▂▃▄▅▆▇█")
	top := 0.0
	for _, v := range values {
		top = max(top, v)
	}
	var b strings.Builder
	for _, v := range values {
		level := 0
		if top > 0 {
			level = int(v / top * float64(len(blocks)-1))
		}
		b.WriteRune(blocks[level])
	}
	return b.String()
}

// fit cuts a line without colors to the terminal's width.
func fit(line string, width int) string {
	if width <= 1 || utf8.RuneCountInString(line) < width {
		return line
	}
	return string([]rune(line)[:width-2]) + "…"
}
