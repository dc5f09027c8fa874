// Command leak serves requests on eight goroutines and forgets to free one buffer
// in a hundred, as a server does that returns early on an error. It asks its tracker
// for suspects each second, and ends when there are some.
//
// It runs on the first GPU, and on the simulated one where there is none.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
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
	tr, err := tracker.New(tracker.Config{Report: io.Discard})
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, tr.Close()) }()

	s := &server{tr: tr}
	var workers sync.WaitGroup
	defer workers.Wait()
	defer s.closed.Store(true)
	for worker := range uint64(8) {
		workers.Go(func() { s.work(rand.New(rand.NewPCG(worker, 0))) })
	}
	for seconds := 1; seconds <= 60; seconds++ {
		time.Sleep(time.Second)
		if suspects := tr.Suspects(); len(suspects) > 0 {
			fmt.Fprintf(out, "After %d seconds and %d requests:\n", seconds, s.requests.Load())
			for _, suspect := range suspects {
				fmt.Fprintln(out, suspect)
			}
			return nil
		}
	}
	return errors.New("no suspects after a minute: this machine is very slow")
}

type server struct {
	tr       *tracker.MemTracker
	requests atomic.Int64
	closed   atomic.Bool
}

// work serves one request after the other.
func (s *server) work(random *rand.Rand) {
	for !s.closed.Load() {
		pause := time.Millisecond + time.Duration(random.Int64N(int64(30*time.Millisecond)))
		n := s.requests.Add(1)
		serve := s.handle
		if n%10 == 0 {
			serve = s.preview
		}
		if err := serve(n, pause); err != nil && !errors.Is(err, errBadRequest) {
			log.Print(err)
			return
		}
	}
}

var errBadRequest = errors.New("bad request")

func (s *server) handle(n int64, pause time.Duration) error {
	input, err := s.decode()
	if err != nil {
		return err
	}
	if n%100 == 99 {
		return errBadRequest // and the input is never freed
	}
	time.Sleep(pause) // the model works
	return input.Free()
}

// preview does it right.
func (s *server) preview(_ int64, pause time.Duration) error {
	input, err := s.decode()
	if err != nil {
		return err
	}
	time.Sleep(pause)
	return input.Free()
}

func (s *server) decode() (*tracker.Buffer, error) {
	return s.tr.Alloc(alloc.Shape{4, 256, 256}, alloc.Float32, tracker.Input)
}
