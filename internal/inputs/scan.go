package inputs

import (
	"io"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/internal/logscan"
)

// Scan reads a log to its end and returns the kinds of which it has a line, in the table's order.
func Scan(r io.Reader) ([]*Kind, error) {
	seen := make(map[*Kind]bool)
	var words []string
	for _, k := range all {
		words = append(words, k.Words...)
	}
	err := logscan.Lines(r, words, func(_ int, line []byte) bool {
		text := string(line)
		for _, k := range all {
			for _, w := range k.Words {
				seen[k] = seen[k] || strings.Contains(text, w)
			}
		}
		return false
	})
	var kinds []*Kind
	for _, k := range all {
		if seen[k] {
			kinds = append(kinds, k)
		}
	}
	return kinds, err
}
