package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// progress shows on a terminal how much of the files was read, and what is known before all of it was. In a pipe there is
// neither. Its methods may be called from any goroutine, and of nil do nothing.
type progress struct {
	size atomic.Int64 // bytes of the files that are opened or announced, as far as they are known
	done atomic.Int64 // bytes of them that were read

	begin sync.Once
	now   func() time.Time

	mu       sync.Mutex
	bar      io.Writer // the terminal of standard error; nil if it is none
	screen   io.Writer // the terminal of standard output; nil if it is none
	began    time.Time
	known    bool  // the sizes of the files were announced
	drawn    bool  // the bar is on the terminal
	lines    int   // of the early answer on the screen
	silent   int64 // done when the command printed something: the bar comes back only if it reads on
	answered bool
	finished bool
}

// newProgress returns the progress of an App, for the streams that are terminals.
func newProgress(stdout, stderr io.Writer) *progress {
	p := &progress{now: time.Now, silent: -1}
	if f, ok := Terminal(stderr); ok {
		p.bar = f
	}
	if f, ok := Terminal(stdout); ok {
		p.screen = f
	}
	return p
}

// open counts the size of a file that is opened, and begins to draw.
func (p *progress) open(size int64) {
	if p == nil || p.bar == nil {
		return
	}
	p.mu.Lock()
	known := p.known
	p.mu.Unlock()
	if !known {
		p.size.Add(size)
	}
	p.begin.Do(func() { go p.draw() })
}

// close takes back what was not read of a file. If it is read later, it counts again.
func (p *progress) close(left int64) {
	if p == nil || p.bar == nil || left <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.known {
		p.size.Add(-left)
	}
}

func (p *progress) read(n int) {
	if p != nil {
		p.done.Add(int64(n))
	}
}

// draw draws the bar from now and then, once the files take long enough for a person to wonder.
func (p *progress) draw() {
	const first, often = 400 * time.Millisecond, 100 * time.Millisecond
	p.mu.Lock()
	p.began = p.now()
	p.mu.Unlock()
	for time.Sleep(first); ; time.Sleep(often) {
		if !p.redraw() {
			return
		}
	}
}

// redraw draws the bar, and reports whether there is more to come.
func (p *progress) redraw() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.finished {
		return false
	}
	if done := p.done.Load(); done != p.silent {
		text := barOf(done, p.size.Load(), p.now().Sub(p.began), WidthOf(p.bar))
		io.WriteString(p.bar, ClearLine+text)
		p.drawn = true
	}
	return true
}

// barOf is the line of the bar, for a terminal with so many columns: how much was read, how fast, and how long the rest will
// take.
func barOf(done, size int64, took time.Duration, width int) string {
	const cells = 24
	rate := float64(done) / max(took.Seconds(), 1e-3)
	speed := fmt.Sprintf("%v/s", alloc.Bytes(rate))
	if size <= 0 {
		return Fit(fmt.Sprintf("read %v, %s", alloc.Bytes(done), speed), width)
	}
	done = min(done, size) // the beginning of a file may be read twice
	filled := int(cells * done / size)
	bar := strings.Repeat("█", filled) + strings.Repeat("░", cells-filled)
	if done == size {
		return Fit(fmt.Sprintf("%s 100 %%, %v, adding up", bar, alloc.Bytes(size)), width)
	}
	text := fmt.Sprintf("%s %3d %%, %v of %v, %s", bar, 100*done/size, alloc.Bytes(done), alloc.Bytes(size), speed)
	if left := time.Duration(float64(size-done) / max(rate, 1) * float64(time.Second)); left < 100*time.Hour {
		text += fmt.Sprintf(", %v left", left.Round(time.Second))
	}
	return Fit(text, width)
}

// early shows a text until the command prints its answer, which takes its place. The text is cut to the screen.
func (p *progress) early(text string) {
	if p.screen == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.finished || p.answered || text == "" {
		return
	}
	p.wipe()
	text = ScreenOf(p.screen).Cut(text)
	io.WriteString(p.screen, text)
	p.lines = strings.Count(text, "\n")
}

// wipe removes the bar.
func (p *progress) wipe() {
	if p.drawn {
		io.WriteString(p.bar, ClearLine)
	}
	p.drawn = false
}

// answer makes room for what the command prints: the bar goes, and the early answer.
func (p *progress) answer() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wipe()
	if p.lines > 0 {
		fmt.Fprintf(p.screen, "\r\x1b[%dA\x1b[J", p.lines)
	}
	p.lines, p.silent, p.answered = 0, p.done.Load(), true
}

// finish ends the drawing. What is shown early stays: the command was ended before its answer.
func (p *progress) finish() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wipe()
	p.finished = true
}
