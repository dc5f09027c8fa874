package estimating

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// adds reports whether the changes offer something that a remedy does not: a third change beside
// two that are enough does not.
func (cs changes) adds(r found) bool {
	return len(r.changes) < 2 || slices.ContainsFunc(r.changes, func(c change) bool {
		return !slices.ContainsFunc(cs, func(other change) bool { return other.about == c.about })
	})
}

const (
	maxRemedies = 3   // the most that are printed
	maxTried    = 300 // the most combinations that are estimated
)

// found is a remedy, with the changes that it is made of.
type found struct {
	remedy
	changes changes
}

// search looks for changes that make a model fit. It estimates each combination as the command line
// with its flags would.
type search struct {
	o       estimateOptions
	name    string
	tried   int
	found   []found
	told    map[string]bool // what the remedies so far are about: the cheapest is enough
	nearest found           // the best of those that do not fit

	strongest map[string]change // the last change about each thing
	hope      map[string]bool   // whether the model fits with the strongest changes about some things
}

// needs returns what the model needs with some changes; ok is false if they contradict each other
// or do not suit the model. If the tensors alone are above the budget, it returns their peak
// without asking an allocator.
func (s *search) needs(cs changes) (n alloc.Bytes, ok bool) {
	s.tried++
	changed := s.o.with(cs)
	if !changed.llamaCpp {
		onCPU := changed
		onCPU.cpu = true
		if r, err := onCPU.estimate(s.name); err == nil && len(r.Inputs) > 0 && r.Memory().Peak.Bytes > s.o.fits {
			return r.Memory().Peak.Bytes, true
		}
	}
	return s.exactly(changed)
}

// exactly returns what the model needs with these options.
func (s *search) exactly(o estimateOptions) (n alloc.Bytes, ok bool) {
	r, err := o.estimate(s.name)
	if err != nil || len(r.Inputs) == 0 {
		return 0, false
	}
	return r.Needs(), true
}

// try notes the changes as a remedy if the model fits with them, and returns what it needs.
func (s *search) try(cs changes) (n alloc.Bytes, ok bool) {
	n, ok = s.needs(cs)
	switch {
	case !ok:
	case n <= s.o.fits:
		s.told[cs.about()] = true
		s.found = append(s.found, s.o.remedy(n, cs))
		slices.SortStableFunc(s.found, func(a, b found) int { return cmp.Compare(a.changes.cost(), b.changes.cost()) })
	case s.nearest.Needs == 0 || n < s.nearest.Needs:
		s.nearest = s.o.remedy(n, cs)
	}
	return n, ok
}

// tryAll tries combinations, the cheapest first, until the next ones cost more than the remedies
// found.
func (s *search) tryAll(all []changes) {
	slices.SortStableFunc(all, func(a, b changes) int { return cmp.Or(cmp.Compare(a.cost(), b.cost()), cmp.Compare(len(a), len(b))) })
	for _, cs := range all {
		if s.tried >= maxTried || len(s.found) >= maxRemedies && s.found[maxRemedies-1].changes.cost() <= cs.cost() {
			return
		}
		about := cs.about()
		if about != "" && !s.told[about] && !slices.ContainsFunc(s.found, func(r found) bool { return !cs.adds(r) }) && s.hopes(about, cs) {
			s.try(cs)
		}
	}
}

// hopes reports whether the model fits with the strongest changes about the same things. If not,
// weaker ones need not be tried.
func (s *search) hopes(about string, cs changes) bool {
	hope, known := s.hope[about]
	if !known {
		var all changes
		for _, c := range cs {
			all = append(all, s.strongest[c.about])
		}
		n, ok := s.needs(all)
		if hope = ok && n <= s.o.fits; ok && !hope && (s.nearest.Needs == 0 || n < s.nearest.Needs) {
			s.nearest = s.o.remedy(n, all)
		}
		s.hope[about] = hope
	}
	return hope
}

// remedies returns the changes that make the model fit, the cheapest first: one, two or three
// together. If nothing makes it fit, nearest is the best that there is, or nil if nothing helps.
func (e estimated) remedies(name string) (fit []remedy, nearest *remedy) {
	s := &search{o: e.options, name: name, told: map[string]bool{}, hope: map[string]bool{}, strongest: map[string]change{}}
	var helps changes // changes that help only together with others: a smaller optimizer state alone does not if the peak is in a pass
	for _, c := range e.changes(s) {
		if s.told[c.about] {
			continue
		}
		if n, ok := s.try(changes{c}); ok && n > s.o.fits {
			helps, s.strongest[c.about] = append(helps, c), c
		}
	}
	var several []changes
	for i, a := range helps {
		for j, b := range helps[i+1:] {
			several = append(several, changes{a, b})
			for _, c := range helps[i+j+2:] {
				several = append(several, changes{a, b, c})
			}
		}
	}
	s.tryAll(several)
	if len(s.found) == 0 && s.nearest.Needs > 0 {
		if n, ok := s.exactly(e.options.with(s.nearest.changes)); ok && n < e.Needs {
			s.nearest.Needs = n
			return nil, &s.nearest.remedy
		}
	}
	for _, f := range s.found[:min(len(s.found), maxRemedies)] {
		fit = append(fit, f.remedy)
	}
	return fit, nil
}

func (o estimateOptions) remedy(needs alloc.Bytes, cs changes) found {
	m := found{remedy{Needs: needs}, cs}
	var says []string
	for _, c := range cs {
		m.Flags = append(m.Flags, strings.Fields(c.flags)...)
		says = append(says, c.says)
	}
	m.Says, m.Command = strings.Join(says, ", and "), command(o.typed, m.Flags)
	return m
}

// with returns the options that the command has with the flags of some changes.
func (o estimateOptions) with(cs changes) estimateOptions {
	*o.parsed = o
	for _, c := range cs {
		if err := o.flagSet.Parse(strings.Fields(c.flags)); err != nil {
			panic(err) // the command has no such flag
		}
	}
	return *o.parsed
}

// command returns the command line with these flags added, or in place of the same flags.
func command(typed, flags []string) string {
	var words []string
	replaced := func(flag string) bool { return slices.Contains(flags, flag) }
	for i := 0; i < len(typed); i++ {
		name, _, joined := strings.Cut(typed[i], "=")
		if strings.HasPrefix(name, "--") && replaced(name) {
			if at := slices.Index(flags, name) + 1; !joined && at < len(flags) && !strings.HasPrefix(flags[at], "--") {
				i++ // its value
			}
			continue
		}
		words = append(words, typed[i])
	}
	for i, w := range append(words, flags...) {
		if strings.ContainsAny(w, " *?[]{}'\"$&|;<>()\\`!~#") {
			w = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
		words = append(words[:i], w)
	}
	return "gpumemtrack " + strings.Join(words, " ")
}
