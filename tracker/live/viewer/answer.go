package viewer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/bands"
	"github.com/gpumemtrack/gpumemtrack/tracker/live/internal/request"
)

// route makes the answer to a request. It reads all parameters before it does anything.
type route func(s *session, r *http.Request, q *request.Query) (answer, error)

// answer is the body of a response.
type answer struct {
	contentType string
	body        []byte
}

// The errors of requests.
var (
	errNotReady = errors.New("not ready")
	errNotFound = errors.New("not found")
)

func codeOf(err error) int {
	switch {
	case errors.Is(err, errNotFound):
		return http.StatusNotFound
	case errors.Is(err, errNotReady):
		return http.StatusConflict
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return http.StatusServiceUnavailable
	case errors.As(err, new(*wrongError)):
		return http.StatusBadRequest
	}
	return http.StatusInternalServerError
}

// wrongError is the error of a wrong request.
type wrongError struct{ error }

func (w *wrongError) Unwrap() error { return w.error }

// checked returns the error of the parameters.
func checked(q *request.Query) error {
	if err := q.Err(); err != nil {
		return &wrongError{err}
	}
	return nil
}

func notFound(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errNotFound, fmt.Errorf(format, args...))
}

// limited makes an answer while it holds one of the places for that.
func (s *session) limited(ctx context.Context, do func() error) error {
	select {
	case s.making <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-s.making }()
	return do()
}

// trackOf returns the track that a request names.
func (s *session) trackOf(q *request.Query) (*track, error) {
	word := q.Text("track")
	fileWord, trackWord, _ := strings.Cut(word, ".")
	f, err := strconv.ParseUint(fileWord, 10, 31)
	n, err2 := strconv.ParseUint(trackWord, 10, 31)
	if err != nil || err2 != nil {
		q.Fail("track=%q: want the number of a file, a point, and that of one of its tracks, such as 0.0", word)
		return nil, nil //nolint:nilnil // the query has the error
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f >= uint64(len(s.files)) {
		return nil, notFound("there is no file %d", f)
	}
	switch of := s.files[f]; {
	case of.state == stateFailed:
		return nil, notFound("file %d could not be read", f)
	case of.state != stateReady:
		return nil, fmt.Errorf("%w: file %d is still being read", errNotReady, f)
	case n >= uint64(len(of.tracks)):
		return nil, notFound("file %d has no track %d", f, n)
	default:
		return of.tracks[n], nil
	}
}

// asked is what most requests name: a track, and which of its allocations.
type asked struct {
	*track
	filter bands.Filter
}

func (s *session) asked(q *request.Query) (asked, error) {
	t, err := s.trackOf(q)
	return asked{t, filterOf(q)}, err
}

// respond calls do with the layer that was asked for, unless a parameter is wrong.
func (s *session) respond(r *http.Request, q *request.Query, a asked, do func(*bands.Layer) (any, error)) (out answer, err error) {
	if err := checked(q); err != nil {
		return answer{}, err
	}
	err = s.limited(r.Context(), func() error {
		l, err := a.layer(r.Context(), a.filter)
		if err != nil {
			return err
		}
		value, err := do(l)
		if err != nil {
			return err
		}
		if body, ok := value.([]byte); ok {
			out = answer{"application/octet-stream", body}
			return nil
		}
		out, err = asJSON(value)
		return err
	})
	return out, err
}

// asJSON returns a value as an answer.
func asJSON(value any) (answer, error) {
	body, err := json.Marshal(value)
	return answer{"application/json", body}, err
}
