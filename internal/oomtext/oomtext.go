// Package oomtext reads what programs print when GPU memory runs out, and says why it did: PyTorch's message in each of its
// forms, and those of JAX, TensorFlow, llama.cpp and others. A text may be a whole log, of which only the lines with such a
// message are looked at.
//
// Each family of messages has a file: a table of the phrases that begin one, and a table of the phrases beside its amounts.
// So a message of a release to come is read as far as its phrases are known. What a text does not say is unknown, and is
// never guessed.
package oomtext

import (
	"cmp"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/internal/inputs"
	"github.com/gpumemtrack/gpumemtrack/internal/logscan"
)

// ErrNone is the error of a text without a message that memory ran out.
var ErrNone = errors.New("it has no message that GPU memory ran out")

// Report is what a text says of memory that ran out.
type Report struct {
	Failures []*Failure // at most maxFailures, in the order of the text; those that say the same are one
	LeftOut  int        // messages beyond these, not looked at
	Stats    []*Stats   // tables of PyTorch's statistics that stand in the text
	BFC      bool       // the text has lines of a BFC allocator, which package bfc reads
	Engine   bool       // the text has lines of an engine, which package enginelog reads
}

// Said reports whether there is anything to tell.
func (r *Report) Said() bool { return len(r.Failures) > 0 || len(r.Stats) > 0 }

// family is a kind of messages.
type family struct {
	name   string
	takes  []string               // families whose beginnings are a part of an open message of this one
	begins []string               // phrases that begin a message
	word   bool                   // the word before these belongs to it
	ends   []string               // phrases in the last line of one
	lines  int                    // that one takes at most
	goesOn func(line string) bool // whether a line after the first belongs to it; nil if any does
	// parse fills in what the message says. It returns false if it is no such message after all.
	parse func(f *Failure, text string) bool
	judge func(f *Failure) // what to do about it, once the verdict is known
}

// families is the table. Where phrases of several stand at one place, the first is meant.
var families = []*family{pytorchFamily, pytorchTail, mpsFamily, asyncFamily, ggmlFamily, xlaFamily, tensorflowFamily, cupyFamily, paddleFamily, hostFamily, bareFamily}

// The bounds of what is kept.
const (
	maxFailures = 256
	maxMessage  = 16 << 10 // bytes of one
)

// Read finds the messages in a text, which may be a log of any length. The error is ErrNone, with a report
// that has no failures, or the reader's.
func Read(r io.Reader) (*Report, error) {
	s := scanner{report: new(Report), seen: make(map[string]*Failure)}
	err := logscan.Lines(r, words(), s.line)
	s.close()
	s.report.Stats = s.table.all
	if err != nil {
		return nil, err
	}
	if !s.report.Said() {
		return s.report, ErrNone
	}
	// Those that say more go first.
	slices.SortStableFunc(s.report.Failures, func(x, y *Failure) int { return cmp.Compare(min(0, y.Requested), min(0, x.Requested)) })
	for _, f := range s.report.Failures {
		f.settings = s.settings
		f.decide()
	}
	return s.report, nil
}

// words are those of lines that are looked at.
func words() []string {
	return slices.Concat(inputs.ErrorText.Words, inputs.PyTorchStats.Words, inputs.BFC.Words, inputs.EngineLog.Words, []string{"expandable_segments"})
}

// scanner goes through the lines of a text.
type scanner struct {
	report   *Report
	settings settings
	seen     map[string]*Failure // by the texts of messages

	open    *family // of the message that is being read; nil if there is none
	failure *Failure
	message strings.Builder
	left    int // lines that may follow

	table tableReader
}

// line reads a line, and reports whether it wants the next one too.
func (s *scanner) line(number int, raw []byte) bool {
	line := clean(raw)
	has := func(w string) bool { return strings.Contains(line, w) }
	s.report.BFC = s.report.BFC || slices.ContainsFunc(inputs.BFC.Words, has)
	s.report.Engine = s.report.Engine || slices.ContainsFunc(inputs.EngineLog.Words, has)
	if s.table.line(line, number) {
		return true
	}
	if !strings.Contains(line, "try setting") && expandableOn.MatchString(line) {
		s.settings.expandable = true
	}
	from := 0
	if s.open != nil {
		s.message.WriteString(" ")
	}
	for begins := newBeginnings(line); ; {
		at, end, f := begins.after(from)
		if at < 0 {
			break
		}
		s.add(line[from:at], false)
		again := s.open == f && f.goesOn != nil && s.failure.Line != number // the same message in a line of its own
		if s.open != nil && slices.Contains(s.open.takes, f.name) && !again {
			if f.lines > s.open.lines { // a short message begins a long one
				s.open, s.left = f, f.lines
			}
			s.add(line[at:end], false)
			from = end
			continue
		}
		s.close()
		s.open, s.left = f, f.lines
		s.failure = newFailure(number, rankOf(line[max(from, at-rankReach):at]))
		s.failure.backend = lastWord(line[:at])
		if f.word {
			s.failure.backend, _, _ = strings.Cut(line[at:], " ")
		}
		s.message.WriteString(line[at:end])
		from = end
	}
	s.add(line[from:], from == 0)
	if s.open == nil {
		return false
	}
	s.left--
	if s.left <= 0 || s.message.Len() > maxMessage || slices.ContainsFunc(s.open.ends, func(end string) bool { return strings.Contains(line[from:], end) }) {
		s.close()
		return false
	}
	return true
}

var expandableOn = regexp.MustCompile(`expandable_segments['"]?\s*[:=]\s*['"]?[Tt]rue`)

// add adds text to the message that is being read. A line that begins like one of another kind ends it.
func (s *scanner) add(text string, wholeLine bool) {
	if s.open == nil {
		return
	}
	if wholeLine {
		text = " " + strings.TrimSpace(prefixes.ReplaceAllString(text, ""))
		if s.open.goesOn != nil && !s.open.goesOn(text) {
			s.close()
			return
		}
		if s.open.lines <= paragraph && (text == " " || strings.HasPrefix(text, " Traceback ") || strings.HasPrefix(text, ` File "`)) {
			s.close()
			return
		}
	}
	s.message.WriteString(text)
}

// paragraph is how many lines a message may be broken into that is one line long as it is printed.
const paragraph = 12

// prefixes are what stands before the text of a line in logs: quotes, times, levels, ranks.
var prefixes = regexp.MustCompile(`^(\s|[>#|*]|//|\[rank\d+\]:|\[?\d{4}-\d\d-\d\d[T ][\d:.,]+Z?\]?|\([A-Za-z]\w*[ =][^)]{0,40}\))*`)

// close ends the message that is being read.
func (s *scanner) close() {
	f, family := s.failure, s.open
	s.failure, s.open = nil, nil
	text := squeeze(s.message.String())
	s.message.Reset()
	if f == nil {
		return
	}
	key := f.Rank + " " + f.backend + " " + text
	if other := s.seen[key]; other != nil {
		other.Repeats++
		return
	}
	if len(s.report.Failures) == maxFailures {
		s.report.LeftOut++
		return
	}
	if !family.parse(f, text) {
		return
	}
	const shown = 240
	f.judge, f.bare, f.onHost = family.judge, family == bareFamily, f.onHost || family == hostFamily
	switch {
	case f.onHost:
		f.judge = helpHost
	case f.bare && (f.Source == "ggml" || f.Source == "llama.cpp"):
		f.judge = helpGGML
	}
	f.Message = text[:min(len(text), shown)]
	for _, other := range s.report.Failures {
		if other.same(f) {
			other.Repeats++
			if len(s.seen) < 2*maxFailures {
				s.seen[key] = other
			}
			return
		}
	}
	if n := len(s.report.Failures); n > 0 && f.Requested >= 0 {
		// What the first lines of a message say shortly, the next ones say in full.
		if last := s.report.Failures[n-1]; last.bare && last.Requested < 0 && last.Repeats == 0 && f.Line-last.Line <= 2 {
			s.report.Failures = s.report.Failures[:n-1]
		}
	}
	s.report.Failures = append(s.report.Failures, f)
	s.seen[key] = f
}

// wordBefore returns where the last word of a text begins, from a place on.
func wordBefore(text string, from int) int {
	return max(from, strings.LastIndexAny(strings.TrimRight(text, " "), " \t:'\"([{")+1)
}

// beginnings finds where messages begin in a line. It looks for each phrase once, however many messages there are.
type beginnings struct {
	line string
	next []int // where each phrase stands next; len(line) if it does not
}

func newBeginnings(line string) *beginnings {
	b := &beginnings{line, make([]int, 0, 64)}
	for _, f := range families {
		for _, phrase := range f.begins {
			b.next = append(b.next, b.find(phrase, 0))
		}
	}
	return b
}

func (b *beginnings) find(phrase string, from int) int {
	if i := strings.Index(b.line[from:], phrase); i >= 0 {
		return from + i
	}
	return len(b.line)
}

// after returns where the first message begins from a place on, where the phrase ends that begins it, and its family; -1 if
// there is none.
func (b *beginnings) after(from int) (at, end int, of *family) {
	at = -1
	n := -1
	for _, f := range families {
		for _, phrase := range f.begins {
			if n++; b.next[n] < from {
				b.next[n] = b.find(phrase, from)
			}
			i := b.next[n]
			if i == len(b.line) {
				continue
			}
			stop := i + len(phrase)
			if f.word {
				i = wordBefore(b.line[:i], from)
			}
			if at < 0 || i < at {
				at, end, of = i, stop, f
			}
		}
	}
	return at, end, of
}

// rankReach is how far before a message its rank may stand.
const rankReach = 512

var rankIn = regexp.MustCompile(`\b[Rr]ank[ =:]?(\d{1,7})\b`)

// rankOf returns the rank that stands before a message.
func rankOf(before string) string {
	if m := rankIn.FindAllStringSubmatch(before, -1); m != nil {
		return "rank" + m[len(m)-1][1]
	}
	return ""
}

// lastWord returns the word that a text ends with.
func lastWord(text string) string {
	words := strings.Fields(text[max(0, len(text)-64):])
	if len(words) == 0 {
		return ""
	}
	return words[len(words)-1]
}

// escapes are what a text has instead of characters, when it was taken from JSON, a notebook or a page.
var escapes = strings.NewReplacer(`\n`, " ", `\t`, " ", `\"`, `"`, `\u003e`, ">", `\u003c`, "<", `\u0027`, "'", `\/`, "/", `\u001b`, "\x1b", `\x1b`, "\x1b", `\033`, "\x1b",
	"&gt;", ">", "&lt;", "<", "&quot;", `"`, "&amp;", "&", "&#40;", "(", "&#41;", ")", "&#39;", "'", "&nbsp;", " ", "\u00a0", " ")

var ansi = regexp.MustCompile(`\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-_])`)

// clean returns a line as plain text: without escapes, colours and control characters, in valid UTF-8.
func clean(raw []byte) string {
	line := strings.ToValidUTF8(string(raw), "?")
	if strings.ContainsAny(line, "\\&\u00a0") {
		line = escapes.Replace(line)
	}
	if strings.Contains(line, "\x1b") {
		line = ansi.ReplaceAllString(line, "")
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r == '\r' || r == '\n':
			return ' '
		case r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0:
			return -1
		}
		return r
	}, line)
}

// squeeze returns a text with single spaces.
func squeeze(text string) string { return strings.Join(strings.Fields(text), " ") }
