package text

import (
	"strings"
	"unicode/utf8"
)

// Wrap breaks a text into lines of at most width characters, each with a newline. The first line begins with first, the
// others with rest. A longer word has a line of its own.
func Wrap(s string, width int, first, rest string) string {
	var b strings.Builder
	line, words := first, 0
	for word := range strings.FieldsSeq(s) {
		if words > 0 && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			b.WriteString(line + "\n")
			line, words = rest, 0
		}
		if words > 0 {
			line += " "
		}
		line += word
		words++
	}
	return b.String() + line + "\n"
}
