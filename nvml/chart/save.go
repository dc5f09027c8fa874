package chart

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Formats are the endings that Save knows.
var Formats = []string{".png", ".svg", ".html"}

// Save writes the chart to a file, in the format that its name ends with. A file
// that exists is an error, fs.ErrExist, unless overwrite is true.
func (f *Figure) Save(path string, overwrite bool) error {
	write, ok := map[string]func(io.Writer) error{".png": f.PNG, ".svg": f.SVG, ".html": f.HTML}[strings.ToLower(filepath.Ext(path))]
	if !ok {
		return fmt.Errorf("%s: charts are written as %s", path, strings.Join(Formats, ", "))
	}
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return fmt.Errorf("drawing the chart %s: %w", path, err)
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	if !overwrite {
		flags |= os.O_EXCL
	}
	file, err := os.OpenFile(path, flags, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists: choose another name, or allow overwriting it: %w", filepath.Clean(path), fs.ErrExist)
	}
	if err != nil {
		return fmt.Errorf("writing a chart: %w", err)
	}
	_, err = b.WriteTo(file)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("writing a chart: %w", err)
	}
	return nil
}
