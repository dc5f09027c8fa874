// Package logscan finds the lines of a log that have one of some words. It reads gigabytes at about the speed of memory, in
// little of it, since most lines of a log are looked at nowhere: see words.
package logscan

import (
	"bytes"
	"errors"
	"io"
)

// The bounds of a line. What is longer is seen as far as these reach.
const (
	MaxLine   = 64 << 10 // bytes of a line that are handled at once
	MaxBefore = 16 << 10 // bytes of them before the word, in a line that is longer
	window    = 256 << 10
)

// Lines reads r to its end and calls handle for each line that has one of the words, with the line's number, from 1 on.
// If handle returns true, it is called for the next line too, whatever that holds. The bytes are valid until handle
// returns. Lines end at a newline, and have none; a carriage return before it is cut off.
//
// A line of more than MaxLine bytes is handled in parts: each begins at most MaxBefore bytes before a word, and all have
// the line's number. Words must have at least three bytes. The error is the reader's, or nil at the end.
func Lines(r io.Reader, words []string, handle func(number int, line []byte) (more bool)) error {
	s := scanner{r: r, find: newFinder(words), data: make([]byte, 0, window), number: 1, handle: handle}
	for {
		err := s.fill()
		s.ended = err != nil
		s.scan()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// scanner goes through a log. data is a window of it; what lies before pos was handled, or passed over.
type scanner struct {
	r      io.Reader
	find   *finder
	data   []byte
	pos    int
	number int  // of the line in which pos lies
	next   bool // the line that begins at pos is wanted, whatever it holds
	ended  bool
	handle func(int, []byte) bool
}

// fill moves what is still needed to the beginning of the window and reads more behind it.
func (s *scanner) fill() error {
	s.data = s.data[:copy(s.data, s.data[s.pos:])]
	s.pos = 0
	for empty := 0; len(s.data) < cap(s.data); {
		n, err := s.r.Read(s.data[len(s.data):cap(s.data)])
		s.data = s.data[:len(s.data)+n]
		if err != nil {
			return err
		}
		if empty++; n > 0 {
			empty = 0
		} else if empty > 100 {
			return io.ErrNoProgress
		}
	}
	return nil
}

// scan handles the lines of the window that are whole or long enough, and leaves pos where the next window must begin.
func (s *scanner) scan() {
	for {
		at := s.pos
		if !s.next {
			found := s.find.index(s.data[s.pos:])
			if found < 0 {
				s.skip()
				return
			}
			at += found
		}
		begin := s.pos
		if newline := bytes.LastIndexByte(s.data[s.pos:at], '\n'); newline >= 0 {
			begin += newline + 1
		}
		s.number += bytes.Count(s.data[s.pos:begin], []byte{'\n'})
		s.pos = begin
		if at-begin > MaxBefore {
			begin = at - MaxBefore
		}
		end, whole := s.end(begin, at)
		if end < 0 {
			return
		}
		s.next = s.handle(s.number, bytes.TrimSuffix(s.data[begin:end], []byte("\r")))
		s.pos = end
		if whole && end < len(s.data) {
			s.pos++
			s.number++
		} else if !whole {
			s.next = false // what follows is still the same line
		}
		if s.pos >= len(s.data) {
			return
		}
	}
}

// end returns where the line that begins at begin ends, or where the part of it does that is handled at once; -1 if more
// must be read first.
func (s *scanner) end(begin, at int) (end int, whole bool) {
	most := min(len(s.data), begin+MaxLine)
	if newline := bytes.IndexByte(s.data[at:most], '\n'); newline >= 0 {
		return at + newline, true
	}
	switch {
	case most == begin+MaxLine:
		return most, false
	case s.ended:
		return most, true
	case s.pos == 0 && len(s.data) == cap(s.data): // the window has nothing but this line
		return most, false
	}
	return -1, false
}

// skip passes over the rest of the window, but for the part that may belong to a line whose word comes later.
func (s *scanner) skip() {
	keep := len(s.data)
	if !s.ended {
		begin := s.pos + bytes.LastIndexByte(s.data[s.pos:], '\n') + 1
		keep = max(begin, len(s.data)-MaxBefore)
	}
	s.number += bytes.Count(s.data[s.pos:keep], []byte{'\n'})
	s.pos = keep
}
