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
	b.WriteString(wrap("A file's kind is told by what it holds, not by its name. gzip is unpacked, and - is standard input. "+
		"--as KIND reads a file as another kind than it looks like.", ""))
	for _, k := range all {
		does := k.Instead
		if len(k.Takes) > 0 {
			does = strings.Join(k.Takes, ", ")
		}
		fmt.Fprintf(&b, "\n%s\n", k.Name)
		b.WriteString(wrap(k.What+", of "+k.Source+": "+k.Sign, "  "))
		b.WriteString(wrap("-> "+does, "  "))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func wrap(s, indent string) string { return text.Wrap(s, 80, indent, indent) }
