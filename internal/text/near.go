package text

import (
	"cmp"
	"slices"
	"strings"
)

// Distance is the number of letters to put in, take out, replace or swap with the next that make one text of the other.
func Distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			if i == 0 || j == 0 {
				rows[i][j] = i + j
				continue
			}
			change := rows[i-1][j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			rows[i][j] = min(change, rows[i-1][j]+1, rows[i][j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}

// Near returns the words, at most three, that a mistyped one may mean: those that begin with it, and those that differ by a
// letter or two of at least twice as many, the nearest first.
func Near(typed string, words []string) []string {
	const longest = 64
	if len(typed) < 2 || len(typed) > longest {
		return nil
	}
	far := map[string]int{}
	var near []string
	for _, w := range words {
		d := Distance(typed, w)
		switch {
		case strings.HasPrefix(w, typed):
			d = 0
		case d > 2 || 2*d >= len(typed):
			continue
		}
		far[w] = d
		near = append(near, w)
	}
	slices.SortStableFunc(near, func(a, b string) int { return cmp.Compare(far[a], far[b]) })
	return near[:min(3, len(near))]
}
