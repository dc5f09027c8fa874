package inputs

import (
	"fmt"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// Help lists the kinds, for people: what each is, what writes it, how it is recognised, and which commands read it. No line
// is wider than 80 columns.
func Help() string {
	var b strings.Builder
	b.WriteString(wrap("A file's kind is told by what it holds, not by its name. gzip is unpacked, UTF-16 is read, and - is standard input. "+
		"--as KIND reads a file as another kind than it looks like.", ""))
	for _, k := range all {
		does := k.Instead
		if len(k.Takes) > 0 {
			does = "read by " + strings.Join(k.Takes, ", ")
		}
		fmt.Fprintf(&b, "\n%s: %s\n", k.Name, k.What)
		b.WriteString(text.Wrap("from "+k.Source, 80, "  ", "    "))
		b.WriteString(text.Wrap("told by "+k.Sign, 80, "  ", "    "))
		b.WriteString(text.Wrap(does, 80, "  ", "    "))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func wrap(s, indent string) string { return text.Wrap(s, 80, indent, indent) }
