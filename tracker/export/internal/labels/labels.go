// Package labels has the texts that several formats give one thing: a stream, a process. It reads and writes no format.
package labels

import (
	"fmt"
	"iter"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// The labels of an origin.
const (
	labelHost      = "host"
	labelPID       = "pid"
	labelProgram   = "program"
	labelRank      = "rank"
	labelWorldSize = "world_size"
	labelContainer = "container"
)

// OfOrigin iterates over the known fields of an origin as names and texts, for formats without a
// place for an origin.
func OfOrigin(o snapshot.Origin) iter.Seq2[string, string] {
	rank := ""
	if o.Rank != nil {
		rank = strconv.Itoa(*o.Rank)
	}
	return func(yield func(name, text string) bool) {
		for _, l := range [...]struct{ name, text string }{
			{labelHost, o.Host}, {labelPID, known(o.PID)}, {labelProgram, o.Program},
			{labelRank, rank}, {labelWorldSize, known(o.WorldSize)}, {labelContainer, o.Container},
		} {
			if l.text != "" && !yield(l.name, l.text) {
				return
			}
		}
	}
}

// Origin returns the origin with these labels: label returns the text of a name, or "" if there is
// none. A number that cannot be read is unknown.
func Origin(label func(name string) string) snapshot.Origin {
	o := snapshot.Origin{Host: label(labelHost), Program: label(labelProgram), Container: label(labelContainer)}
	o.PID, _ = number(label(labelPID))
	o.WorldSize, _ = number(label(labelWorldSize))
	if rank, ok := number(label(labelRank)); ok {
		o.Rank = &rank
	}
	return o
}

func known(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func number(text string) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 31)
	return int(n), err == nil
}

// Stream names a stream: "default stream", "stream 0x7f00".
func Stream(s alloc.Stream) string {
	if s == tables.OtherStreams {
		return "other streams"
	}
	if s == 0 {
		return "default stream"
	}
	return fmt.Sprintf("stream %#x", uint64(s))
}

// OnHost reports whether a type of memory is the host's, by its name.
func OnHost(memory string) bool {
	if memory == "" {
		return false
	}
	m := alloc.UnknownMemory
	return m.UnmarshalText([]byte(memory)) == nil && m.OnHost()
}
