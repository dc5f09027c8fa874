// Package inputs says what kind of file an input is, from its first bytes and lines. The table of kinds is the one place
// that knows them: each command asks it, and the page "gpumemtrack help inputs" is printed from it.
//
// To add a kind, add a Kind to the file of its family, and its reader where the data belongs. A file has one kind by its
// beginning. A log, though, may hold several things, far from its beginning: the start of an engine and, a gigabyte later,
// the error that ended it. Kinds that stand in logs have Words, and Scan goes through the whole text for them.
//
// The package knows no reader and imports no other package of formats.
package inputs

import (
	"fmt"
	"slices"
	"strings"
)

// all is the table. Where several kinds fit a beginning, the first is meant.
var all = slices.Concat(own, pytorch, recordings, models, xla, others, logs)

// All returns all kinds, those of one family side by side.
func All() []*Kind { return slices.Clone(all) }

// Of returns the kind of an input that begins with these bytes, of which HeadSize suffice; nil if it is none of the
// table's. A text that is none is Text: what it holds may stand further on.
func Of(head []byte) *Kind { return ofHead(newHead(head), "") }

// For is like Of, but of the kinds that stand in the beginning of a log it prefers one that the command reads.
func For(command string, head []byte) *Kind { return ofHead(newHead(head), command) }

func ofHead(h *Head, command string) *Kind {
	var first *Kind
	for _, k := range all {
		if !k.begins(h) {
			continue
		}
		if !k.Log() || command == "" || k.TakenBy(command) {
			return k
		}
		if first == nil {
			first = k
		}
	}
	switch {
	case first != nil:
		return first
	case h.IsText():
		return Text
	}
	return nil
}

// ByName returns the kind that --as names.
func ByName(name string) (*Kind, error) {
	var names []string
	for _, k := range all {
		if k.Name == name {
			return k, nil
		}
		if len(k.Takes) > 0 {
			names = append(names, k.Name)
		}
	}
	return nil, fmt.Errorf("there is no kind %q: want one of %s", name, strings.Join(names, ", "))
}

// Names returns the names of the kinds that a command reads.
func Names(command string) (names []string) {
	for _, k := range all {
		if k.TakenBy(command) {
			names = append(names, k.Name)
		}
	}
	return names
}
