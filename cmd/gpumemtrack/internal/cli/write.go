package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/internal/userfile"
	"github.com/gpumemtrack/gpumemtrack/nvml"
	"github.com/gpumemtrack/gpumemtrack/nvml/chart"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/html"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/pprof"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/trace"
	"github.com/gpumemtrack/gpumemtrack/tracker/replay"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// formats lists what convert and attach write. The first whose ending fits the file's name is
// taken.
var formats = []Format{
	{end: ".pb.gz", usage: pprof.WriteUsage},
	{end: ".pickle", dump: torch.Write},
	{end: ".trace.json", dump: trace.Write, events: true},
	{end: ".html", dump: writePage},
	{end: ".json", dump: func(w io.Writer, r *snapshot.Dump) error { return r.WriteJSON(w) }},
}

// writePage writes a dump as a page. For a failed request, the page also says what would have
// helped.
func writePage(w io.Writer, r *snapshot.Dump) error {
	page := *r
	page.Others = nil
	for _, other := range r.Others {
		page.Others = append(page.Others, advised(other))
	}
	return html.Write(w, advised(&page))
}

// advised returns the dump with advice for its error, found by replays.
func advised(r *snapshot.Dump) *snapshot.Dump {
	advice := replay.Advice(r)
	if advice == "" {
		return r
	}
	out, failure := *r, *r.OOM
	failure.Advice = strings.TrimSpace(advice + " " + failure.Advice)
	out.OOM = &failure
	return &out
}

// Format is a file format. Some formats need a dump, others only sums by call stack; some consist
// of events, or need their times.
type Format struct {
	end    string
	dump   func(io.Writer, *snapshot.Dump) error
	usage  func(io.Writer, *export.Usage) error
	events bool
}

// FormatOf returns the format that fits the ending of a file's name.
func FormatOf(path string) (to Format, ok bool) {
	i := slices.IndexFunc(formats, func(f Format) bool { return strings.HasSuffix(path, f.end) })
	if i < 0 {
		return Format{}, false
	}
	return formats[i], true
}

// Writer returns a function that writes the file in the format. The error says what the file lacks.
func Writer(f *files.File, to Format, device int) (func(io.Writer) error, error) {
	if to.usage != nil && device < 0 {
		return func(w io.Writer) error { return to.usage(w, f.Usage.Fill()) }, nil
	}
	if f.Dump == nil {
		return nil, fmt.Errorf("a %s has sums by call stack only: no single buffers, no segments and no events, which a %s file needs", f.Format, to.end)
	}
	r, err := deviceOf(f.Dump, device)
	if err != nil {
		return nil, err
	}
	switch {
	case to.usage != nil:
		return func(w io.Writer) error { return to.usage(w, export.FromSnapshot(r.Snapshot)) }, nil
	case to.events && FirstEvent(r) < 0:
		return nil, fmt.Errorf("the %s has no events, of which a %s file consists: %s", f.Format, to.end, howToGetEvents(f))
	case to.events && r.Snapshot.Time.IsZero():
		return nil, fmt.Errorf("the events of the %s have no times, which a %s file needs: PyTorch writes them since version 2.1. A .html file shows the events in their order", f.Format, to.end)
	}
	return func(w io.Writer) error { return to.dump(w, r) }, nil
}

// FirstEvent returns the number of the first event that a dump has; -1 if it has none.
func FirstEvent(d *snapshot.Dump) int64 {
	for e := range d.Events() {
		return int64(e.Seq)
	}
	return -1
}

func howToGetEvents(f *files.File) string {
	if f.Format == "PyTorch snapshot" {
		return "call torch.cuda.memory._record_memory_history() at the program's start"
	}
	return "a dump has them"
}

// deviceOf returns the dump of one device, by its ordinal; -1 means all of them.
func deviceOf(r *snapshot.Dump, device int) (*snapshot.Dump, error) {
	if device < 0 {
		return r, nil
	}
	all := append([]*snapshot.Dump{r}, r.Others...)
	var have []string
	for _, of := range all {
		if of.Snapshot.Ordinal == device {
			alone := *of
			alone.Others = nil
			return &alone, nil
		}
		have = append(have, strconv.Itoa(of.Snapshot.Ordinal))
	}
	slices.Sort(have)
	return nil, fmt.Errorf("it has no device %d: want one of %s", device, strings.Join(have, ", "))
}

// WriteNew writes a file that appears only once it is complete.
func WriteNew(path string, force bool, write func(io.Writer) error) error {
	err := userfile.Write(path, force, write)
	if errors.Is(err, fs.ErrExist) {
		return existsError(path)
	}
	return err
}

// NewLog makes a file that grows by whole records while the program runs.
func NewLog(path string, force bool) (*userfile.Log, error) {
	l, err := userfile.CreateLog(path, force)
	if errors.Is(err, fs.ErrExist) {
		return nil, existsError(path)
	}
	return l, err
}

// existsError is the error of a file that exists already, the same in all commands.
func existsError(path string) error {
	return fmt.Errorf("%s exists: choose another name, or overwrite it with -f", path)
}

// CanCreate reports whether a file can be written, before the work for it is done.
func CanCreate(path string, overwrite bool) error {
	if info, err := os.Lstat(path); err == nil {
		switch {
		case !overwrite:
			return existsError(path)
		case !info.Mode().IsRegular() && info.Mode()&os.ModeSymlink == 0:
			return fmt.Errorf("cannot overwrite %s: it is not a regular file", path)
		case info.Mode().IsRegular():
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return fmt.Errorf("cannot overwrite: %w", err)
			}
			return f.Close()
		}
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return fmt.Errorf("cannot write here: %w: name a directory that exists and may be written, with -o", err)
	}
	return errors.Join(f.Close(), os.Remove(path))
}

// IsChart reports whether the ending of a file's name is that of a chart.
func IsChart(path string) bool {
	return slices.Contains([]string{".png", ".svg", ".html"}, strings.ToLower(filepath.Ext(path)))
}

// SaveCharts draws a recording into files, and prints their names. The error is of those that could
// not be drawn or written; the others are there.
func (a *App) SaveCharts(rec nvml.Recording, cfg chart.Config, paths []string, force bool) error {
	var errs []error
	for _, path := range paths {
		if err := chart.WriteFile(path, force, rec.Series, cfg); err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Fprintf(a.Stderr, "chart: %s\n", path)
	}
	return errors.Join(errs...)
}
