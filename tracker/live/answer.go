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

// file is the type and name of an answer.
type file struct {
	contentType string
	name        string // file name for saving; "" to show the answer in the browser
	compressed  bool   // the content is compressed already
}

// The answers that are files.
var (
	jsonFile = file{contentType: "application/json"}
	textFile = file{contentType: "text/plain; charset=utf-8"}
	htmlFile = file{contentType: "text/html; charset=utf-8"}
	profiles = file{contentType: "application/octet-stream", compressed: true}
)

func (f file) named(name string) file {
	f.name = name
	return f
}

func (f file) write(body io.Writer, header http.Header, compress bool, write func(io.Writer) error) error {
	if f.compressed || !compress {
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
	for coding := range strings.SplitSeq(strings.Join(r.Header.Values("Accept-Encoding"), ","), ",") {
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

const writeTimeout = 30 * time.Second // for each chunk

// deadlineWriter is a response with a new deadline for each chunk: it ends the request of a client that
// reads nothing, and lets a slow one take longer than the server's WriteTimeout.
type deadlineWriter struct {
	http.ResponseWriter
	control *http.ResponseController
}

func newDeadlineWriter(w http.ResponseWriter) *deadlineWriter {
	return &deadlineWriter{ResponseWriter: w, control: http.NewResponseController(w)}
}

const writeChunk = 1 << 16 // bytes that a client has to read within writeTimeout

func (p *deadlineWriter) Write(b []byte) (n int, err error) {
	for first := true; first || len(b) > 0; first = false {
		// A writer without deadlines is that of a test, or of a middleware that sets its own.
		_ = p.control.SetWriteDeadline(time.Now().Add(writeTimeout))
		m, err := p.ResponseWriter.Write(b[:min(len(b), writeChunk)])
		n += m
		if err != nil {
			return n, err
		}
		b = b[m:]
	}
	return n, nil
}

const (
	maxInMemory = 1 << 20 // bytes of an answer without a file
	maxFiles    = 64      // concurrent answers in files
)

// spool buffers a complete answer, a small one in memory and a large one in a temporary file, so that a
// slow client holds nothing else.
type spool struct {
	files  semaphore // bounds the number of files
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

// spill moves the buffer to a file.
func (s *spool) spill() error {
	if !s.files.tryAcquire() {
		return errBusy
	}
	f, err := os.CreateTemp("", "gpumemtrack-answer-*")
	if err != nil {
		s.files.release()
		return fmt.Errorf("an answer of more than %d bytes needs a temporary file: %w", maxInMemory, err)
	}
	s.file = f
	// Remove the name where the system allows it: a program that is killed leaves no file.
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
	defer s.files.release()
	err := s.file.Close()
	if removed := os.Remove(s.file.Name()); !errors.Is(removed, os.ErrNotExist) {
		err = errors.Join(err, removed)
	}
	return err
}

// semaphore bounds the number of concurrent requests of a kind.
type semaphore chan struct{}

func newSemaphore(n int) semaphore { return make(semaphore, n) }

// wrap returns a handler that answers 503 if the semaphore cannot be acquired at once.
func (l semaphore) wrap(page http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !l.tryAcquire() {
			refuse(w, errBusy)
			return
		}
		defer l.release()
		page(w, r)
	}
}

// tryAcquire acquires the semaphore if that is possible at once. The caller releases it.
func (l semaphore) tryAcquire() bool {
	select {
	case l <- struct{}{}:
		return true
	default:
		return false
	}
}

// acquire acquires the semaphore, and waits for that until ctx ends. The caller releases it.
func (l semaphore) acquire(ctx context.Context) error {
	if l.tryAcquire() {
		return nil
	}
	select {
	case l <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l semaphore) release() { <-l }

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
