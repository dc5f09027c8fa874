// Command leak shows a leak of device memory being found, in each of the ways
// that there are: as growth from mark to mark, as what is live and was not
// before, and as a buffer that nothing refers to any more, which the Go collector
// proves to be lost.
//
// It runs on the first GPU, and on the simulated one where there is none.
package main

import (
	"cmp"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"runtime"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

func main() {
	if err := run(os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(out io.Writer) (err error) {
	tr, err := tracker.New(tracker.Config{
		Report: io.Discard,
		Lost:   tracker.ReportLost,
		Logger: slog.New(slog.DiscardHandler), // this program tells of it itself
	})
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, tr.Close()) }()

	service := &service{tr: tr, cache: make(map[int]*tracker.Buffer)}
	before := tr.LightSnapshot()
	for request := range 30 {
		if err := service.handle(request); err != nil {
			return err
		}
		tr.Track()
	}

	fmt.Fprintln(out, "What grows:")
	for _, growth := range tr.Growth(0) {
		fmt.Fprintln(out, " ", growth)
	}

	waitForCollector(tr)
	fmt.Fprintln(out, "\nWhat is live and was not before:")
	for _, leak := range tr.Leaks(tracker.Since(before)) {
		fmt.Fprintln(out, leak)
	}

	fmt.Fprintln(out, "What a test would say:")
	tracker.VerifyNoLeaks(printer{out}, tr, tracker.OnlyLost())
	runtime.KeepAlive(service) // until here the cache could still be freed
	return nil
}

// service answers requests, and leaks twice.
type service struct {
	tr    *tracker.MemTracker
	cache map[int]*tracker.Buffer
}

func (s *service) handle(request int) error {
	scratch, err := s.tr.Alloc(alloc.Shape{64, 1024}, alloc.Float32, tracker.Temporary)
	if err != nil {
		return err
	}
	if err := s.remember(request); err != nil {
		return err
	}
	if request%3 == 0 {
		return s.fail() // and scratch is never freed
	}
	return scratch.Free()
}

// remember keeps an answer in a cache that nothing bounds.
func (s *service) remember(request int) error {
	answer, err := s.tr.Alloc(alloc.Shape{256, 1024}, alloc.Float32, tracker.Activation)
	s.cache[request] = answer
	return err
}

func (s *service) fail() error { return nil }

// waitForCollector gives it time to find what is lost.
func waitForCollector(tr *tracker.MemTracker) {
	for range 100 {
		runtime.GC()
		if len(tr.Leaks(tracker.OnlyLost())) > 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// printer stands in for a *testing.T.
type printer struct{ out io.Writer }

func (p printer) Errorf(format string, args ...any) { fmt.Fprintf(p.out, format+"\n", args...) }
