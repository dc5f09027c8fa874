package enginelog

import (
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/logscan"
)

// Read finds what engines say in a log, which may be packed by gzip. There is a report for each start of an engine, in
// their order. The error is ErrNoEngine, or says that the file is torn or too large.
func Read(r io.Reader) ([]*Report, error) {
	in, err := bounded.NewReader(r, 0)
	if err != nil {
		return nil, err
	}
	s := scanner{patterns: patterns()}
	err = logscan.Lines(in, words(), func(number int, line []byte) bool {
		s.read(number, plain(string(line)))
		return false
	})
	if err != nil {
		return nil, fmt.Errorf("read log: %w", err)
	}
	s.end()
	for _, r := range s.reports {
		conclude(r)
	}
	if len(s.reports) == 0 {
		return nil, ErrNoEngine
	}
	return s.reports, nil
}

// patterns are those of all engines, made when the first log is read.
var patterns = sync.OnceValue(func() []pattern {
	return slices.Concat(vllmPatterns(), sglangPatterns(), llamaPatterns(), ollamaPatterns(), tensorrtPatterns(), deepspeedPatterns(), torchPatterns())
})

// words are those of all patterns: most lines of a log have none.
var words = sync.OnceValue(func() (all []string) {
	for _, p := range patterns() {
		if !slices.Contains(all, p.has) {
			all = append(all, p.has)
		}
	}
	return all
})
