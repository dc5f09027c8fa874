package viewer

import "github.com/gpumemtrack/gpumemtrack/internal/text"

// known returns a text that can be printed, or nil if it is empty.
func known(s string) *string {
	if s == "" {
		return nil
	}
	s = printable(s)
	return &s
}

// maxText bounds a text from a file, in bytes.
const maxText = 1000

// printable returns a text from a file as one short line. The page puts it on the screen as text, never as HTML.
func printable(s string) string { return text.Line(cut(s, maxText)) }

func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return text.UTF8(s[:most/2]) + "…" + text.UTF8(s[len(s)-most/2:])
}
