package live

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// file says what an answer is.
type file struct {
	contentType string
	name        string // file name for saving; "" if the answer is to be read in the browser
	packed      bool   // it is compressed already
}

// The answers that are files.
var (
	jsonFile = file{contentType: "application/json"}
	textFile = file{contentType: "text/plain; charset=utf-8"}
	htmlFile = file{contentType: "text/html; charset=utf-8"}
	profiles = file{contentType: "application/octet-stream", packed: true}
)

func (f file) named(name string) file {
	f.name = name
	return f
}

func (f file) make(body io.Writer, header http.Header, compress bool, write func(io.Writer) error) error {
	if f.packed || !compress {
		return write(body)
	}
	header.Set("Content-Encoding", "gzip")
	packer, err := gzip.NewWriterLevel(body, gzip.BestSpeed)
	if err != nil {
		return err
	}
	if err := write(packer); err != nil {
		return err
	}
	return packer.Close()
}

// acceptsGzip reads the Accept-Encoding header: RFC 9110, 12.5.3.
func acceptsGzip(r *http.Request) bool {
	accepts := false
	for _, coding := range strings.Split(strings.Join(r.Header.Values("Accept-Encoding"), ","), ",") {
		name, weight, _ := strings.Cut(strings.ToLower(strings.ReplaceAll(coding, " ", "")), ";q=")
		q, err := strconv.ParseFloat(weight, 64)
		wanted := weight == "" || err == nil && q > 0
		switch name {
		case "gzip":
			return wanted
		case "*":
			accepts = wanted
		}
	}
	return accepts
}

const patience = 30 * time.Second // for a client that reads nothing

// patient is a response whose client has a while for each piece, and ends a
// request whose client takes nothing. It gives the client the time that the
// server's WriteTimeout may not.
type patient struct {
	http.ResponseWriter
	control *http.ResponseController
}

func newPatient(w http.ResponseWriter) *patient {
	return &patient{ResponseWriter: w, control: http.NewResponseController(w)}
}

const piece = 1 << 16 // what a client has to take within the time

func (p *patient) Write(b []byte) (n int, err error) {
	for first := true; first || len(b) > 0; first = false {
		// A writer without deadlines belongs to a test, or to a middleware that sets its own.
		_ = p.control.SetWriteDeadline(time.Now().Add(patience))
		m, err := p.ResponseWriter.Write(b[:min(len(b), piece)])
		n += m
		if err != nil {
			return n, err
		}
		b = b[m:]
	}
	return n, nil
}

const (
	maxInMemory = 1 << 20 // bytes of an answer that need no file
	maxFiles    = 64      // answers in files at a time
)

// spool holds an answer between its making and its sending, so that a slow
// client keeps nothing but the answer: a small one in memory, a large one in a
// temporary file.
type spool struct {
	places limit // limits the number of files
	memory bytes.Buffer
	file   *os.File
	size   int64
}

func (s *spool) Write(b []byte) (n int, err error) {
	if s.file == nil && s.memory.Len()+len(b) > maxInMemory {
		if err := s.spill(); err != nil {
			return 0, err
		}
	}
	if s.file == nil {
		n, err = s.memory.Write(b)
	} else {
		n, err = s.file.Write(b)
	}
	s.size += int64(n)
	return n, err
}

// spill moves what there is to a file.
func (s *spool) spill() error {
	if !s.places.try() {
		return errBusy
	}
	f, err := os.CreateTemp("", "gpumemtrack-answer-*")
	if err != nil {
		s.places.leave()
		return fmt.Errorf("an answer of more than %d bytes needs a temporary file: %w", maxInMemory, err)
	}
	s.file = f
	// Where the system lets it, the name goes now: a program that is killed leaves no file.
	_ = os.Remove(f.Name())
	_, err = s.memory.WriteTo(f)
	s.memory = bytes.Buffer{}
	return err
}

// sendTo writes the answer.
func (s *spool) sendTo(w io.Writer) error {
	if s.file == nil {
		_, err := w.Write(s.memory.Bytes())
		return err
	}
	if _, err := s.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, err := io.Copy(w, s.file)
	return err
}

func (s *spool) close() error {
	if s.file == nil {
		return nil
	}
	defer s.places.leave()
	err := s.file.Close()
	if removed := os.Remove(s.file.Name()); !errors.Is(removed, os.ErrNotExist) {
		err = errors.Join(err, removed)
	}
	return err
}

// limit bounds how many requests of a kind are in work at a time.
type limit chan struct{}

func newLimit(n int) limit { return make(limit, n) }

// guard answers 503 while there are as many requests as may be.
func (l limit) guard(page http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !l.try() {
			refuse(w, errBusy)
			return
		}
		defer l.leave()
		page(w, r)
	}
}

// try enters if there is room. The caller leaves.
func (l limit) try() bool {
	select {
	case l <- struct{}{}:
		return true
	default:
		return false
	}
}

// enter waits until there is one request less, or ctx ends. The caller leaves.
func (l limit) enter(ctx context.Context) error {
	if l.try() {
		return nil
	}
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l limit) leave() { <-l }

// wait waits for some time, or until the client is gone.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
