package cli

import (
	"os"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
)

// Announce says which files a command will read, so that the bar is of all of them from the beginning.
func Announce(a *App, paths []string) {
	p := a.progress
	if p == nil || p.bar == nil {
		return
	}
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			p.size.Add(info.Size())
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = true
}

// leastEarly is the size of a file that takes long enough to read for an early answer.
var leastEarly int64 = 16 << 20 // a variable for tests

// ShowEarly shows on a terminal what a file tells before all of it is read: see ReadEarly. What the command prints takes
// its place; in a pipe there is only that.
func ShowEarly(a *App, path string, text func(*files.File) string) {
	p := a.progress
	if p == nil || p.screen == nil {
		return
	}
	if f := ReadEarly(a, path); f != nil {
		p.early(text(f))
	}
}

// ReadEarly reads what a large file tells before all of it is read: see files.ReadLive. It returns nil if that is nothing, or
// if it cannot be read. The file is opened once more.
func ReadEarly(a *App, path string) *files.File {
	if path == "-" || IsURL(path) || a.as != "" {
		return nil
	}
	source, err := openFile(&App{}, path)
	if err != nil {
		return nil
	}
	defer source.Close()
	if source.size < leastEarly {
		return nil
	}
	r, err := bounded.NewReaderWithin(source, limitsOf(a))
	if err != nil {
		return nil
	}
	f, ok, err := files.ReadLive(r)
	if !ok || err != nil {
		return nil
	}
	f.Usage.Name = path
	return f
}
