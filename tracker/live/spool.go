package live

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
)

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
