package zoo

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// find returns the entry that a name means: of that very name, else of one that differs by words of
// tuning alone. If these are several of different sizes, the name means none.
func find(name string) (entry, bool) {
	for _, reduced := range []func(name string) string{normal, untuned} {
		key := reduced(name)
		found := slices.DeleteFunc(slices.Clone(entries()), func(e entry) bool {
			return reduced(e.name) != key && !slices.ContainsFunc(e.also, func(other string) bool { return reduced(other) == key })
		})
		if len(found) > 0 && !slices.ContainsFunc(found, func(e entry) bool { return e.params != found[0].params }) {
			return found[0], true
		}
	}
	return entry{}, false
}

// words of a name are in lower case, and without the organization before it.
func words(name string) []string {
	name = strings.ToLower(name[strings.LastIndexByte(name, '/')+1:])
	return strings.FieldsFunc(name, func(r rune) bool { return strings.ContainsRune("-_.: ", r) })
}

// normal is a name without its organization, upper case and separators.
func normal(name string) string { return strings.Join(words(name), "") }

// tunings are words in names that say how a model was trained, or who published it. The model
// without them has the same layers.
var tunings = []string{"instruct", "it", "pt", "chat", "hf", "meta", "thinking", "coder", "math"}

// sized is a word that says how many parameters a model has, beside which "base" is no size.
var sized = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(\d+x)?\d+[bm]$`) })

// untuned is a name as normal has it, without words of tuning and without the date of a version, such as 2507.
func untuned(name string) string {
	all := words(name)
	hasSize := slices.ContainsFunc(all, sized().MatchString)
	return strings.Join(slices.DeleteFunc(all, func(w string) bool {
		return slices.Contains(tunings, w) || w == "base" && hasSize || len(w) == 4 && strings.Trim(w, "0123456789") == ""
	}), "")
}

// Similar returns the names, at most five, that somebody may have meant by another: those that
// differ by a letter or two, or that contain it or are contained in it, as "qwen2.5-7b" is in
// "Qwen/Qwen2.5-7B-Instruct-AWQ". These come first, and the nearest before others.
func Similar(name string) []string {
	key := normal(name)
	if len(key) < 2 || len(key) > 64 {
		return nil
	}
	type candidate struct {
		name     string
		kin, far int
	}
	var found []candidate
	for _, e := range entries() {
		other := normal(e.name)
		far := distance(key, other)
		kin := 2 // of a letter or two
		switch {
		case strings.HasPrefix(key, other) || strings.HasPrefix(other, key):
			kin = 0
		case len(key) > 2 && (strings.Contains(key, other) || strings.Contains(other, key)):
			kin = 1
		case far > 2 || 2*far >= len(key):
			continue
		}
		found = append(found, candidate{e.name, kin, far})
	}
	slices.SortStableFunc(found, func(a, b candidate) int { return cmp.Or(a.kin-b.kin, a.far-b.far) })
	names := make([]string, min(5, len(found)))
	for i := range names {
		names[i] = found[i].name
	}
	return names
}

// distance is the number of letters to put in, take out, replace or swap with the next that make one text of
// the other.
func distance(a, b string) int {
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
