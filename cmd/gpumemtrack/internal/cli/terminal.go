package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// Terminal returns the stream's file if it is a terminal that a person sees. A pipe, a regular file
// and a dumb terminal are not.
func Terminal(stream any) (*os.File, bool) {
	if w, ok := stream.(io.Writer); ok {
		stream = Underlying(w)
	}
	f, ok := stream.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
}

// Screen is the size of a terminal in characters; zero means without limit.
type Screen struct{ Width, Height int }

// ScreenOf returns a terminal's size. For anything else it is zero.
func ScreenOf(stream any) Screen {
	f, ok := Terminal(stream)
	if !ok {
		return Screen{}
	}
	width, height, _ := term.GetSize(int(f.Fd())) // 0 if it is not known
	return Screen{width, height}
}

// WidthOf returns a terminal's width in columns. For anything else it is 0.
func WidthOf(stream any) int { return ScreenOf(stream).Width }

// Holds reports whether all lines of a text fit on the screen, with the cursor below them.
func (s Screen) Holds(text string) bool {
	return s.Height <= 0 || strings.Count(text, "\n") < s.Height
}

// Cut leaves out the last lines of a text that does not fit, and says how many are missing.
func (s Screen) Cut(text string) string {
	if s.Holds(text) {
		return text
	}
	lines := strings.SplitAfter(text, "\n")
	shown := max(1, s.Height-2)
	return strings.Join(lines[:shown], "") + fmt.Sprintf("… %d more lines\n", strings.Count(text, "\n")-shown)
}

// Colored reports whether to color what goes to w: see https://no-color.org.
func Colored(w io.Writer) bool {
	_, ok := Terminal(w)
	return ok && os.Getenv("NO_COLOR") == ""
}

const (
	Cyan  = "\x1b[36m"
	Red   = "\x1b[31m"
	Green = "\x1b[32m"
	plain = "\x1b[0m"

	ClearLine   = "\r\x1b[K"
	ClearScreen = "\x1b[H\x1b[J"
)

// Paint colors a text if color is on.
func Paint(text, color string, on bool) string {
	if !on {
		return text
	}
	return color + text + plain
}

// Fit cuts a line, which must have no colors, to the terminal's width.
func Fit(line string, width int) string {
	if width <= 1 || utf8.RuneCountInString(line) < width {
		return line
	}
	return string([]rune(line)[:width-2]) + "…"
}
