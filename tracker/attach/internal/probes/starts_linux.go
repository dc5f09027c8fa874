//go:build amd64 || arm64

package probes

import (
	"sync"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
)

// StartRecords holds what was read of programs at their start, until the event of the start is read. Any
// goroutine may use it.
type StartRecords struct {
	mu        sync.Mutex
	byProgram map[event.Program]*event.StartRecord
}

const maxStartRecords = 1 << 14

// add keeps the record of a program.
func (b *StartRecords) add(of event.Program, record *event.StartRecord) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.byProgram) >= maxStartRecords || b.byProgram == nil {
		b.byProgram = make(map[event.Program]*event.StartRecord) // events of those that it had were lost
	}
	b.byProgram[of] = record
}

// take removes and returns the record of a program; nil if there is none.
func (b *StartRecords) take(of event.Program) *event.StartRecord {
	b.mu.Lock()
	defer b.mu.Unlock()
	record := b.byProgram[of]
	delete(b.byProgram, of)
	return record
}

// Programs returns the names of the programs that have a record.
func (b *StartRecords) Programs() (names []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, its := range b.byProgram {
		names = append(names, its.Origin.Program)
	}
	return names
}

// Drop removes all records, as if their programs had ended before anything was read of them.
func (b *StartRecords) Drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(b.byProgram)
}
