// Replay simulates a server of a language model on the simulated GPU. The key and value caches
// of its requests grow as text is generated, and every twentieth page it keeps a prefix for
// later requests. It writes a dump, and prints how much memory the same run needs with each
// allocator.
//
//	go run ./examples/replay -o run.json
//	gpumemtrack replay run.json --smallest
//	gpumemtrack explain run.json
package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/replay"
)

func main() {
	dump := flag.String("o", "", "file for the dump")
	pages := flag.Int("pages", 400, "pages of text to generate")
	flag.Parse()
	if err := run(os.Stdout, *dump, *pages); err != nil {
		log.Fatal(err)
	}
}

func run(out io.Writer, dump string, pages int) (err error) {
	gpu, err := sim.New(sim.Config{})
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, gpu.Close()) }()
	tr, err := tracker.New(tracker.Config{Device: gpu, Report: io.Discard})
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, tr.Close()) }()

	s := &server{tr: tr, random: rand.New(rand.NewPCG(1, 2))}
	defer func() { err = cmp.Or(err, s.close()) }()
	if err := s.serve(pages); err != nil {
		return err
	}
	if dump != "" {
		if err := save(tr, dump); err != nil {
			return err
		}
	}
	for _, allocator := range replay.Allocators() {
		result, err := replay.Smallest(tr.Dump(), replay.Config{Allocator: allocator})
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%-10s needs %v\n", allocator, result.Memory)
	}
	return nil
}

func save(tr *tracker.MemTracker, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return cmp.Or(tr.Dump().WriteJSON(f), f.Close())
}

// server has eight requests at a time.
type server struct {
	tr       *tracker.MemTracker
	random   *rand.Rand
	caches   [8]*tracker.Buffer // of keys and values
	lengths  [8]int             // in pages of 16 tokens
	prefixes []*tracker.Buffer  // kept for later requests
}

// serve generates that many pages of text.
func (s *server) serve(pages int) error {
	for page := range pages {
		i := s.random.IntN(len(s.caches))
		if s.lengths[i] > 40 && s.random.IntN(3) == 0 { // its text is complete
			if err := s.finish(i); err != nil {
				return err
			}
		}
		if err := s.grow(i); err != nil {
			return err
		}
		if page%20 == 19 {
			if err := s.remember(); err != nil {
				return err
			}
		}
	}
	return nil
}

// grow replaces a request's cache with one that is a few pages longer.
func (s *server) grow(i int) error {
	s.lengths[i] += 1 + s.random.IntN(8)
	longer, err := s.tr.Alloc(alloc.Shape{s.lengths[i], 2, 16, 4096}, alloc.Float16, "KV")
	if err != nil {
		return err
	}
	shorter := s.caches[i]
	s.caches[i] = longer
	return shorter.Free()
}

// remember keeps the first tokens of a request.
func (s *server) remember() error {
	prefix, err := s.tr.Alloc(alloc.Shape{5, 2, 16, 4096}, alloc.Float16, "Prefix")
	s.prefixes = append(s.prefixes, prefix)
	return err
}

func (s *server) finish(i int) error {
	done := s.caches[i]
	s.caches[i], s.lengths[i] = nil, 0
	return done.Free()
}

func (s *server) close() (err error) {
	for _, b := range append(s.prefixes, s.caches[:]...) {
		err = cmp.Or(err, b.Free())
	}
	return err
}
