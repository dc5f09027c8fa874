// Package files opens whatever the exporters and other programs write, by what
// the file holds and not by its name: snapshots and dumps of this module, pprof
// profiles, and PyTorch's memory snapshots; each may be packed by gzip.
package files

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/pprof"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch"
)

// File is a file that was read.
type File struct {
	Format string // in words: "snapshot", "dump", "pprof profile", "PyTorch snapshot"
	Usage  *export.Usage
	Record *export.Record // of a snapshot or a dump; nil of other formats
}

// Open reads a file. The error names it, and says what it is not or where it is torn.
func Open(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	file, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	file.Usage.Name = path
	return file, nil
}

// Read reads a file's text.
func Read(in io.Reader) (*File, error) {
	r := bufio.NewReaderSize(in, 1<<16)
	head, err := r.Peek(512)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if bytes.HasPrefix(head, []byte{0x1f, 0x8b}) {
		return readPacked(r)
	}
	switch first := bytes.TrimLeft(head, " \t\r\n"); {
	case len(head) == 0:
		return nil, errors.New("the file is empty")
	case bytes.HasPrefix(first, []byte("{")):
		return readJSON(r, head)
	case head[0] == 0x80:
		u, err := torch.Read(r)
		return other("PyTorch snapshot", u, err)
	case head[0] == 0x0a:
		return readProfile(r)
	}
	return nil, fmt.Errorf("begins with %q: want a snapshot or dump (JSON), a pprof profile, or a PyTorch snapshot (pickle)", head[:min(8, len(head))])
}

// maxUnpacked bounds a packed file: a small one can hold terabytes.
const maxUnpacked = 1 << 30

// readPacked reads a gzip: a pprof profile always is one, and the others may be.
func readPacked(r io.Reader) (*File, error) {
	zip, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("the file is torn: %w", err)
	}
	limit := &io.LimitedReader{R: zip, N: maxUnpacked}
	unpacked := bufio.NewReader(limit)
	read := Read
	if head, _ := unpacked.Peek(1); len(head) > 0 && head[0] != '{' && head[0] != 0x80 {
		read = readProfile
	}
	f, err := read(unpacked)
	if err != nil && limit.N <= 0 {
		return nil, fmt.Errorf("the file unpacks to more than %v", alloc.Bytes(maxUnpacked))
	}
	return f, err
}

func readProfile(r io.Reader) (*File, error) {
	u, err := pprof.Read(r)
	return other("pprof profile", u, err)
}

func other(format string, u *export.Usage, err error) (*File, error) {
	if err != nil {
		return nil, err
	}
	return &File{Format: format, Usage: u}, nil
}

// readJSON goes by the schema. Ours stands at the beginning; a program that sorts
// keys puts it elsewhere.
func readJSON(r io.Reader, head []byte) (*File, error) {
	switch {
	case bytes.Contains(head, []byte(`"`+tracker.DumpSchema+`"`)): // which holds a snapshot
		return readDump(r)
	case bytes.Contains(head, []byte(`"`+tracker.SnapshotSchema+`"`)):
		return readSnapshot(r)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	var top struct{ Schema string }
	if json.Unmarshal(text, &top) == nil && top.Schema == tracker.DumpSchema {
		return readDump(bytes.NewReader(text))
	}
	return readSnapshot(bytes.NewReader(text))
}

func readSnapshot(r io.Reader) (*File, error) {
	s, err := tracker.ReadSnapshot(r)
	if err != nil {
		return nil, err
	}
	return &File{Format: "snapshot", Usage: export.FromSnapshot(s), Record: &export.Record{Snapshot: s}}, nil
}

func readDump(r io.Reader) (*File, error) {
	d, err := tracker.ReadDump(r)
	if err != nil {
		return nil, err
	}
	record := export.Record{Snapshot: d.Snapshot, History: d.History, Marks: d.Marks}
	usage := export.FromSnapshot(d.Snapshot)
	if rest := d.LeftOut.Unsited; rest != (tracker.Unsited{}) {
		usage.Rows = append(usage.Rows, export.Row{Device: export.Device(d.Snapshot), Live: rest.Live, Peak: rest.Peak, Total: rest.Total})
	}
	return &File{Format: "dump", Usage: usage, Record: &record}, nil
}

// Expand returns the files that a word names: the files of a directory, those
// that match a pattern, or the one file, in the order of their names.
func Expand(word string) ([]string, error) {
	if info, err := os.Stat(word); err == nil {
		if !info.IsDir() {
			return []string{word}, nil
		}
		return filesIn(word)
	}
	found, err := filepath.Glob(word)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", word, err)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s: %w", word, os.ErrNotExist)
	}
	return found, nil
}

func filesIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if info, err := os.Stat(path); e.Name()[0] != '.' && (err != nil || info.Mode().IsRegular()) {
			found = append(found, path) // also what cannot be read: to leave it out would make a wrong sum
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s: the directory has no files", dir)
	}
	slices.Sort(found)
	return found, nil
}
