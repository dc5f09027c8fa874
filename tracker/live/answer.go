package live

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

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

// file says what an answer is.
type file struct {
	contentType string
	name        string // file name for saving; "" if the answer is to be read in the browser
	packed      bool   // it is compressed already
}

// send makes an answer first and writes it afterwards, because writing may wait for the client. For
// HEAD it writes only the headers. If making the answer fails, the error is sent instead.
func (h *handler) send(w http.ResponseWriter, r *http.Request, f file, write func(io.Writer) error) {
	header := w.Header()
	header.Set("Content-Type", f.contentType)
	if f.name != "" {
		header.Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", f.name))
	}
	if !f.packed {
		header.Set("Vary", "Accept-Encoding")
	}
	if r.Method == http.MethodHead {
		return
	}
	body := &spool{places: h.files}
	defer body.close()
	if err := f.make(body, header, acceptsGzip(r), write); err != nil {
		header.Del("Content-Disposition")
		header.Del("Content-Encoding")
		refuse(w, err)
		return
	}
	header.Set("Content-Length", strconv.FormatInt(body.size, 10))
	if err := body.sendTo(newPatient(w)); err != nil {
		panic(http.ErrAbortHandler) // the client is gone, or must not take a part for the whole
	}
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

// within makes an answer as limited does.
func (h *handler) within(places limit, r *http.Request, write func(io.Writer) error) func(io.Writer) error {
	return func(w io.Writer) error {
		return h.limited(places, r, func() error { return write(w) })
	}
}

// limited calls do when one of the places is free, and waits a little for that. A place is
// taken only while an answer is made, not while it is written.
func (h *handler) limited(places limit, r *http.Request, do func() error) error {
	ctx, cancel := context.WithTimeoutCause(r.Context(), h.busy, errBusy)
	defer cancel()
	if places.enter(ctx) != nil {
		return context.Cause(ctx)
	}
	defer places.leave()
	return do()
}
