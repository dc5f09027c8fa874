package metrics

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Set is the values of one source, with the labels that all of its series have.
type Set struct {
	Labels Labels
	Values *Values
}

// Write writes sets as Prometheus's text, or as OpenMetrics. Of sets with the same labels only the first is written. The
// error is the writer's.
func Write(w io.Writer, sets []Set, openMetrics bool) error {
	sets = distinct(sets)
	var b bytes.Buffer
	for _, i := range byName() {
		lines := make(map[string]string) // by the text that tells the series apart
		for _, set := range sets {
			for label, value := range set.Values[i] {
				labels := set.Labels.with(families[i].Label, label)
				lines[labels.key()] = families[i].Name + labels.String() + " " + number(value, openMetrics) + "\n"
			}
		}
		if len(lines) > 0 {
			families[i].head(&b, openMetrics)
		}
		for _, key := range slices.Sorted(maps.Keys(lines)) {
			b.WriteString(lines[key])
		}
	}
	if openMetrics {
		b.WriteString("# EOF\n")
	}
	_, err := b.WriteTo(w)
	return err
}

func distinct(sets []Set) (out []Set) {
	seen := make(map[string]bool)
	for _, set := range sets {
		if key := set.Labels.key(); !seen[key] {
			seen[key] = true
			out = append(out, set)
		}
	}
	return out
}

// byName returns the places of the families in the order of their names.
func byName() []int {
	order := make([]int, len(families))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(x, y int) int { return strings.Compare(families[x].Name, families[y].Name) })
	return order
}

// head writes what a metric means. OpenMetrics names a counter without the ending of its series.
func (f Family) head(b *bytes.Buffer, openMetrics bool) {
	name, kind := f.Name, "gauge"
	if f.Counter() {
		kind = "counter"
		if openMetrics {
			name = strings.TrimSuffix(name, "_total")
		}
	}
	fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n", name, f.Help, name, kind)
}

// with returns the labels with one more, unless its name is "".
func (l Labels) with(name, value string) Labels {
	if name == "" {
		return l
	}
	all := maps.Clone(l)
	all[name] = value
	return all
}

// key is a text that differs for labels with the same names and other values.
func (l Labels) key() string {
	var values []string
	for _, name := range slices.Sorted(maps.Keys(l)) {
		values = append(values, l[name])
	}
	return strings.Join(values, "\x00")
}

var escape = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// String returns the text after a metric's name.
func (l Labels) String() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(l)) {
		parts = append(parts, name+`="`+escape.Replace(l[name])+`"`)
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// number prints a value. In OpenMetrics it always looks like a fraction.
func number(v float64, openMetrics bool) string {
	text := strconv.FormatFloat(v, 'g', -1, 64)
	if openMetrics && !strings.ContainsAny(text, "e.") {
		text += ".0"
	}
	return text
}
