package quantconfig

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/strictjson"
)

// names are patterns of the paths of modules. Plain ones, which are the most, are looked up.
type names struct {
	plain   map[string]bool
	regexps []*regexp.Regexp // of a whole path, or of its beginning
	globs   []string
	size    int // of the regular expressions, in instructions
}

// maxNames bounds the names of a list, of which the longest have some thousand, and maxPatterns the regular expressions and
// wildcards among them: each is compared with each module, and published configs have a hundred at most.
const (
	maxNames    = 1 << 16
	maxPatterns = 256
)

// bounded returns an error if there are too many patterns.
func bounded(patterns int) error {
	if patterns > maxPatterns {
		return fmt.Errorf("more than %d patterns of modules are not read", maxPatterns)
	}
	return nil
}

var plainName = regexp.MustCompile(`^[\w.\-]+$`)

// compile adds a regular expression.
func (n *names) compile(text string) error {
	const most = 64 * maxPatterns // instructions
	if len(text) > most {
		return fmt.Errorf("it is longer than %d bytes", most)
	}
	r, err := regexp.Compile(text)
	if err != nil {
		return errors.New("it is no regular expression of Go")
	}
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return err
	}
	program, err := syntax.Compile(tree.Simplify())
	if err != nil {
		return err
	}
	n.regexps = append(n.regexps, r)
	if n.size += len(program.Inst); n.size > most {
		return fmt.Errorf("all have more than %d instructions", most)
	}
	return bounded(len(n.regexps))
}

// aliases are the paths of a module in files of older releases of transformers, its own first.
func aliases(path string) []string {
	all := []string{path}
	if rest, ok := strings.CutPrefix(path, "model.language_model."); ok {
		all = append(all, "language_model.model."+rest, "model."+rest)
	} else if rest, ok := strings.CutPrefix(path, "model."); ok {
		all = append(all, rest)
		if !strings.HasPrefix(rest, "layers.") {
			return all
		}
		all = append(all, "language_model."+path)
	} else if path == "lm_head" {
		all = append(all, "language_model.lm_head")
	}
	return all
}

// skipped reads the patterns of transformers' modules_to_not_convert (quantizers/quantizers_utils.py,
// should_convert_module): a pattern is a regular expression of the path up to the end of a module's name, or the end of
// the path.
func skipped(list []string) (names, error) {
	n := names{plain: map[string]bool{}}
	if len(list) > maxNames {
		return n, fmt.Errorf("a list of %d modules: want at most %d", len(list), maxNames)
	}
	for _, p := range list {
		if p == "" {
			continue
		}
		n.plain[p] = true
		if plainName.MatchString(p) {
			continue
		}
		if err := n.compile("^(?:" + p + ")$"); err != nil {
			return n, fmt.Errorf("the pattern %q is not read: %w", strictjson.Shorten(p), err)
		}
	}
	return n, nil
}

// skips reports whether a pattern of skipped matches the path.
func (n names) skips(of string) bool {
	if len(n.plain) == 0 {
		return false
	}
	for _, name := range aliases(of) {
		for i := range len(name) {
			if n.plain[name[i:]] {
				return true
			}
			if name[i] == '.' && (n.begins(name[:i]) || n.begins(name[:i+1])) {
				return true
			}
		}
		if n.begins(name) {
			return true
		}
	}
	return false
}

// begins reports whether a pattern is the whole text.
func (n names) begins(text string) bool {
	if n.plain[text] {
		return true
	}
	for _, r := range n.regexps {
		if r.MatchString(text) {
			return true
		}
	}
	return false
}

// targeted reads the targets or the ignore list of compressed-tensors (utils/match.py, match_name): paths, classes such
// as Linear, or regular expressions of the beginning of a path after "re:".
func targeted(list []string) (names, error) {
	n := names{plain: map[string]bool{}}
	if len(list) > maxNames {
		return n, fmt.Errorf("a list of %d modules: want at most %d", len(list), maxNames)
	}
	for _, p := range list {
		text, isRegexp := strings.CutPrefix(p, "re:")
		if !isRegexp {
			n.plain[p] = true
			continue
		}
		if err := n.compile("^(?:" + text + ")"); err != nil {
			return n, fmt.Errorf("the pattern %q is not read: %w", strictjson.Shorten(p), err)
		}
	}
	return n, nil
}

// targets reports whether a pattern of targeted names the module; byClass, whether its class is named.
func (n names) targets(of string) (named, byClass bool) {
	if slices.ContainsFunc(aliases(of), n.begins) {
		return true, false
	}
	return n.plain["Linear"], n.plain["Linear"]
}

// excluded reads the wildcards of ModelOpt.
func excluded(list []string) (names, error) {
	n := names{plain: map[string]bool{}}
	if len(list) > maxNames {
		return n, fmt.Errorf("a list of %d modules: want at most %d", len(list), maxNames)
	}
	for _, p := range list {
		if _, err := path.Match(p, ""); err != nil {
			return n, fmt.Errorf("the pattern %q is not read", strictjson.Shorten(p))
		}
		if n.plain[p] = true; strings.ContainsAny(p, "*?[") {
			n.globs = append(n.globs, p)
		}
		if err := bounded(len(n.globs)); err != nil {
			return n, err
		}
	}
	return n, nil
}

// excludes reports whether a wildcard of excluded matches the path, or is a part of it (vLLM's is_layer_excluded).
func (n names) excludes(of string) bool {
	for _, name := range aliases(of) {
		for i := range len(name) { // a part that begins and ends with a module's name
			if i > 0 && name[i-1] != '.' {
				continue
			}
			for j := i + 1; j <= len(name); j++ {
				if (j == len(name) || name[j] == '.') && n.plain[name[i:j]] {
					return true
				}
			}
		}
		for _, g := range n.globs {
			if ok, _ := path.Match(g, name); ok {
				return true
			}
		}
	}
	return false
}
