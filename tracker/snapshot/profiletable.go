package snapshot

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Table prints the rows in their order, a line each, with the whole paths.
func (p *Profile) Table() string {
	return layOut(p.sorted(), func(r *ProfileRow) string { return r.Path })
}

// Tree prints the rows as a tree, in the order of the tree.
func (p *Profile) Tree() string {
	return layOut(p.rows, func(r *ProfileRow) string {
		name := r.Path[strings.LastIndexByte(r.Path, '/')+1:]
		return strings.Repeat("  ", strings.Count(r.Path, "/")) + name
	})
}

// layOut prints a table: the first column by name, then those that any row has
// something for. Numbers are set right, texts left.
func layOut(rows []ProfileRow, name func(*ProfileRow) string) string {
	lines := make([]strings.Builder, len(rows)+1)
	for c := ByPath; int(c) < len(columns); c++ {
		col := columns[c]
		if c == ByPath {
			col.text = name
		}
		if col.has != nil && !slices.ContainsFunc(rows, func(r ProfileRow) bool { return col.has(&r) }) {
			continue
		}
		cells := []string{col.header}
		for i := range rows {
			cells = append(cells, col.text(&rows[i]))
		}
		appendColumn(lines, cells, c == ByPath || c == ByInputs || c == BySite)
	}
	var text strings.Builder
	for i := range lines {
		text.WriteString(strings.TrimRight(lines[i].String(), " ") + "\n")
	}
	return text.String()
}

func appendColumn(lines []strings.Builder, cells []string, left bool) {
	width := 0
	for _, cell := range cells {
		width = max(width, utf8.RuneCountInString(cell))
	}
	for i, cell := range cells {
		if lines[i].Len() > 0 {
			lines[i].WriteString("  ")
		}
		pad := strings.Repeat(" ", width-utf8.RuneCountInString(cell))
		if left {
			lines[i].WriteString(cell + pad)
		} else {
			lines[i].WriteString(pad + cell)
		}
	}
}
