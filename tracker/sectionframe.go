package tracker

// frame is a place on a goroutine's stack of sections. While it is the innermost,
// the goroutine's work counts for its section, or, once that is done, for the
// innermost open one around that. A section that was opened in the goroutine has
// one frame, which goes when the section is left; a call of what Bind returned has
// one for as long as it runs.
type frame struct {
	section      *Section
	bound        bool   // by Bind
	goroutine    uint64 // 0 if it is on no stack
	outer, inner *frame
}

// enter makes f the goroutine's innermost frame.
func (s *sections) enter(f *frame, goroutine uint64) {
	f.goroutine = goroutine
	if f.outer = s.innermost[goroutine]; f.outer != nil {
		f.outer.inner = f
	}
	s.innermost[goroutine] = f
}

// leave takes f off its goroutine's stack, and the sections that the goroutine
// opened inside it; but for those in a bound function, which is still running.
func (s *sections) leave(f *frame) {
	for f != nil {
		inner := f.inner
		s.drop(f)
		if inner != nil && inner.bound {
			return
		}
		f = inner
	}
}

// drop takes f off its goroutine's stack, if it is on one.
func (s *sections) drop(f *frame) {
	switch {
	case f.goroutine == 0:
		return
	case f.inner != nil:
		f.inner.outer = f.outer
	case f.outer != nil:
		s.innermost[f.goroutine] = f.outer
	default:
		delete(s.innermost, f.goroutine)
	}
	if f.outer != nil {
		f.outer.inner = f.inner
	}
	f.goroutine, f.outer, f.inner = 0, nil, nil
}
