package inputs

import (
	"slices"
	"strings"
)

// HeadSize is how many bytes of an input, unpacked, show its kind.
const HeadSize = 64 << 10

// Kind is a kind of input.
type Kind struct {
	Name   string   // of the flag --as, such as "pytorch-snapshot"
	What   string   // in plain words, with an article: "a memory snapshot of PyTorch"
	Source string   // what writes it, for the help page: "torch.cuda.memory._dump_snapshot"
	Takes  []string // the commands that read it; the first is the one to recommend
	// Instead says what to do with a file that no command reads, such as "open it in a browser". It is
	// empty if Takes is not.
	Instead string

	// Words are those that make a line of a log this kind's, each with as few lines of others as can be.
	// They are looked for as they are, anywhere in a line.
	Words []string

	is func(*Head) bool // by the beginning; nil if only Words tell
}

// TakenBy reports whether a command reads the kind.
func (k *Kind) TakenBy(command string) bool { return slices.Contains(k.Takes, command) }

// Log reports whether the kind stands in logs, among other lines.
func (k *Kind) Log() bool { return len(k.Words) > 0 }

// begins reports whether an input of this kind may begin so.
func (k *Kind) begins(h *Head) bool {
	if k.is != nil && k.is(h) {
		return true
	}
	return len(k.Words) > 0 && h.IsText() && slices.ContainsFunc(k.Words, func(w string) bool { return strings.Contains(h.text, w) })
}
