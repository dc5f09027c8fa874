package live

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

const patience = 30 * time.Second // for a client that takes nothing

// patient is a response whose client has a while for each piece, and ends a
// request whose client takes nothing. It gives the client the time that the
// server's WriteTimeout may not.
type patient struct {
	http.ResponseWriter
	control *http.ResponseController
	began   bool // something was written
}

func newPatient(w http.ResponseWriter) *patient {
	return &patient{ResponseWriter: w, control: http.NewResponseController(w)}
}

const piece = 1 << 16 // what a client has to take within the time

func (p *patient) Write(b []byte) (n int, err error) {
	p.began = true
	for first := true; first || len(b) > 0; first = false {
		// A writer that has no deadlines is a test's, or a middleware's that sees to it.
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

// answer is a buffer for answers that are small.
func answer(w http.ResponseWriter, contentType string, write func(*bytes.Buffer) error) {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		refuse(w, err)
		return
	}
	w.Header().Set("Content-Type", contentType)
	newPatient(w).Write(b.Bytes())
}

// send writes a file; a HEAD gets no more than its headers. An error that comes
// after the first bytes ends the connection, so that the client does not take a part
// for the whole.
func send(w http.ResponseWriter, r *http.Request, contentType, name string, write func(io.Writer) error) {
	header := w.Header()
	header.Set("Content-Type", contentType)
	if name != "" {
		header.Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name))
	}
	if r.Method == http.MethodHead {
		return
	}
	out := newPatient(w)
	switch err := write(out); {
	case err == nil:
	case out.began:
		panic(http.ErrAbortHandler)
	default:
		header.Del("Content-Disposition")
		refuse(w, err)
	}
}

// refuse answers with an error.
func refuse(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	for _, gone := range []error{alloc.ErrClosed, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, gone) {
			code = http.StatusServiceUnavailable
		}
	}
	http.Error(w, err.Error(), code)
}
