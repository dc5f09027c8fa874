package inspect

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/enginelog"
	"github.com/gpumemtrack/gpumemtrack/internal/oomtext"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
)

// explainText explains a text in which a program says that memory ran out, or what takes its memory. If the log of a BFC
// allocator stands in it too, that tells more than the message.
func explainText(a *cli.App, in *cli.Input, device int, at string, asJSON bool) error {
	head, _ := in.Peek(64)
	isJSON := bytes.HasPrefix(bytes.TrimSpace(head), []byte("{")) // and its schema may stand far from the beginning
	in.Stream()
	again, err := newRereader(in)
	if err != nil {
		return err
	}
	defer again.close()
	report, err := oomtext.Read(again.first)
	if err != nil && !errors.Is(err, oomtext.ErrNone) {
		return in.Error(bounded.Torn(err))
	}
	if report.BFC || isJSON && !report.Said() {
		if f, err := again.file(); err == nil {
			return explainFile(a, f, in.Name, device, at, asJSON)
		} else if !errors.Is(err, files.ErrFormat) {
			return err
		}
	}
	var engines []*enginelog.Report
	if report.Engine {
		if engines, err = again.engines(); err != nil {
			return err
		}
	}
	says := func(r *enginelog.Report) bool { return !report.Said() || !r.OnlyFailed() }
	if engines = slices.DeleteFunc(engines, func(r *enginelog.Report) bool { return !says(r) }); len(engines) > 0 {
		return writeEngines(a, in.Name, engines, report, asJSON)
	}
	if !report.Said() {
		return in.Unread(fmt.Errorf("%s: %w", in.Name, oomtext.ErrNone))
	}
	if at != "" || device >= 0 {
		return cli.UsageError("explain: %s is a text of one moment: leave --at and --device away", in.Name)
	}
	if asJSON {
		return cli.WriteObject(a.Stdout, "gpumemtrack.explain.error/1", report)
	}
	_, err = fmt.Fprint(a.Stdout, report)
	return err
}

// explainLogs explains the errors in many logs, such as those of the ranks of a run: each in a line, and the first in full.
func explainLogs(a *cli.App, word string, paths []string, asJSON bool) error {
	var lines []string
	var first *oomtext.Failure
	logs := 0
	for _, path := range paths {
		failures, err := failuresIn(a, path)
		if err != nil {
			return err
		}
		if len(failures) == 0 {
			continue
		}
		logs++
		if first == nil {
			first = failures[0]
		}
		lines = append(lines, text.Wrap(text.Line(path)+", "+failures[0].Summary(), 80, "  ", "    "))
	}
	switch {
	case first == nil:
		return fmt.Errorf("%s: none of the %d files is a dump, a memory snapshot of PyTorch, or a log with an out-of-memory error", word, len(paths))
	case asJSON:
		return cli.UsageError("explain: --json takes one log: name one of those in %s", word)
	}
	const most = 20
	fmt.Fprintf(a.Stdout, "memory ran out in %d of %s:\n", logs, count(len(paths), "file"))
	for _, line := range lines[:min(most, len(lines))] {
		fmt.Fprint(a.Stdout, line)
	}
	if n := len(lines) - most; n > 0 {
		fmt.Fprintf(a.Stdout, "  and %d more\n", n)
	}
	_, err := fmt.Fprintf(a.Stdout, "\nthe first of them:\n%v", first)
	return err
}

// failuresIn returns the errors in a file; none if it is no log.
func failuresIn(a *cli.App, path string) ([]*oomtext.Failure, error) {
	in, err := cli.OpenInput(a, path)
	if errors.Is(err, files.ErrFormat) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if !in.IsLog() {
		return nil, nil
	}
	in.Stream()
	report, err := oomtext.Read(in.Reader)
	if err != nil && !errors.Is(err, oomtext.ErrNone) {
		return nil, in.Error(bounded.Torn(err))
	}
	return report.Failures, nil
}

// rereader lets an input be read twice: a file is opened again, and what cannot be is kept in a temporary file.
type rereader struct {
	in    *cli.Input
	first io.Reader
	kept  *os.File // nil if the input can be opened again
}

func newRereader(in *cli.Input) (*rereader, error) {
	r := &rereader{in: in, first: in.Reader}
	if in.CanReopen() {
		return r, nil
	}
	var err error
	if r.kept, err = os.CreateTemp("", "gpumemtrack-*.log"); err != nil {
		return nil, err
	}
	r.first = io.TeeReader(in.Reader, r.kept)
	return r, nil
}

// file reads the input again, as the log of an allocator.
func (r *rereader) file() (*files.File, error) {
	if r.kept == nil {
		return r.in.Reopened()
	}
	if _, err := r.kept.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return r.in.ReadAgain(r.kept)
}

// engines reads the input again, as the log of an engine; nil if it is none.
func (r *rereader) engines() ([]*enginelog.Report, error) {
	var in io.Reader = r.kept
	var err error
	if r.kept == nil {
		err = r.in.Again()
		r.in.Stream()
		in = r.in.Reader
	} else {
		_, err = r.kept.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, err
	}
	reports, err := enginelog.Read(in)
	if err != nil && !errors.Is(err, enginelog.ErrNoEngine) {
		return nil, r.in.Error(bounded.Torn(err))
	}
	return reports, nil
}

func (r *rereader) close() {
	if r.kept != nil {
		r.kept.Close()
		os.Remove(r.kept.Name())
	}
}
