package chart

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/internal/userfile"
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
	err := userfile.Write(path, overwrite, write)
	switch {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%s exists: choose another name, or allow overwriting it: %w", filepath.Clean(path), fs.ErrExist)
	case err != nil:
		return fmt.Errorf("writing a chart: %w", err)
	}
	return nil
}
