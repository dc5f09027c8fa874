// Package files opens what the exporters and other programs write. It recognises a file by its
// contents, not by its name: snapshots and dumps of this module, pprof profiles, PyTorch's memory
// snapshots, and logs of BFC allocators. Each may be packed by gzip.
package files

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/userfile"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/internal/bfc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/pprof"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// File is a file that was read.
type File struct {
	Format string        `json:"format"` // "snapshot", "dump", "pprof profile", "PyTorch snapshot" or "log of a BFC allocator"
	Usage  *export.Usage `json:"usage"`  // Dump is nil for a pprof profile, and for a log without chunks. It has Others if the file has
	// several devices. In a PyTorch snapshot from before 2.1, events have no times, and the time of
	// the Snapshot is zero.
	Dump *snapshot.Dump `json:"dump,omitempty"`
	// Failures are those in a log of a BFC allocator. Each prints what was asked for, why it failed and
	// what is in the way, and marshals as docs/formats.md describes.
	Failures []fmt.Stringer `json:"failures,omitempty"`
}

// ErrFormat says that a file is in no known format. The error for a damaged file of a known format
// is another one.
var ErrFormat = errors.New("not a snapshot")

// isText recognises text. A profile is not text: its first bytes include small numbers.
func isText(head []byte) bool {
	return !bytes.ContainsFunc(head, func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' && r != '\r' })
}

// ReadFile reads a file. The error names it. It is ErrFormat, or says where the file is damaged.
func ReadFile(path string) (*File, error) { return ReadFileWithin(path, 0) }

// ReadFileWithin reads a file as ReadFile does, with a limit of your own, for large files. limit bounds
// both the memory and the unpacked bytes. 0 means 1 GiB. The errors are those of ReadFile.
func ReadFileWithin(path string, limit alloc.Bytes) (*File, error) {
	f, err := userfile.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := bounded.NewReader(f, int64(limit))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	file, err := Read(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	file.Usage.Name = path
	return file, nil
}

// Read reads a file, packed by gzip or not. The errors are those of ReadFile, without the name.
func Read(in io.Reader) (*File, error) {
	r, err := bounded.NewReader(in, 0)
	if err != nil {
		return nil, err
	}
	head, err := r.Peek(4096)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, bounded.Torn(err)
	}
	switch first := bytes.TrimLeft(head, " \t\r\n"); {
	case len(head) == 0:
		return nil, fmt.Errorf("%w: the file is empty", ErrFormat)
	case bytes.HasPrefix(first, []byte("{")) && !isTorchJSON(first):
		return readJSON(r, head)
	case bytes.HasPrefix(first, []byte("{")), isList(first), isPickle(head):
		return readTorch(r)
	case bytes.HasPrefix(head, []byte("version https://git-lfs")):
		return nil, fmt.Errorf("%w: it is a pointer of Git LFS, and the file itself is not here: run git lfs pull", ErrFormat)
	case head[0] == 0x0a && !isText(head):
		return readProfile(r)
	}
	if bytes.IndexByte(head, 0) < 0 {
		f, err := readLog(r)
		if !errors.Is(err, bfc.ErrNoFailure) {
			return f, err
		}
		if err != bfc.ErrNoFailure { //nolint:errorlint // an error around it says more
			return nil, fmt.Errorf("%w: %w", ErrFormat, err)
		}
	}
	return nil, fmt.Errorf("%w: it begins with %q: want a snapshot or dump (JSON), a pprof profile, a PyTorch snapshot (pickle or JSON), or a log in which a BFC allocator ran out of memory", ErrFormat, head[:min(8, len(head))])
}

// isPickle recognises a pickle of a dict or a list. One of protocol 0 or 1 has no first byte that says so.
func isPickle(head []byte) bool {
	for _, begin := range []string{"\x80", "(d", "(l", "}q", "]q"} {
		if bytes.HasPrefix(head, []byte(begin)) {
			return true
		}
	}
	return false
}

// isTorchJSON recognises the JSON of a snapshot of PyTorch by its first key.
func isTorchJSON(text []byte) bool {
	key, _, ok := bytes.Cut(bytes.TrimLeft(text[1:], " \t\r\n\""), []byte(`"`))
	return ok && slices.Contains([]string{"segments", "device_traces", "allocator_settings", "external_annotations"}, string(key))
}

// isList recognises a JSON list of objects or of lists, but not the "[INFO]" of a log.
func isList(text []byte) bool {
	rest, ok := bytes.CutPrefix(text, []byte("["))
	rest = bytes.TrimLeft(rest, " \t\r\n")
	return ok && len(rest) > 0 && bytes.IndexByte([]byte("{[]"), rest[0]) >= 0
}

func readTorch(r io.Reader) (*File, error) {
	d, usage, err := torch.Read(r)
	if err != nil {
		return nil, err
	}
	return &File{Format: "PyTorch snapshot", Usage: usage, Dump: d}, nil
}

func readLog(r io.Reader) (*File, error) {
	failures, d, usage, err := bfc.Read(r)
	if err != nil {
		return nil, err
	}
	f := &File{Format: "log of a BFC allocator", Usage: usage, Dump: d}
	for _, failure := range failures {
		f.Failures = append(f.Failures, failure)
	}
	return f, nil
}

func readProfile(r io.Reader) (*File, error) {
	u, err := pprof.Read(r)
	if err != nil {
		return nil, err
	}
	return &File{Format: "pprof profile", Usage: u}, nil
}

// maxUnnamed bounds a JSON file whose first bytes do not say what it is.
const maxUnnamed = 1 << 27

// readJSON goes by the schema. This module writes it first; a program that sorts keys puts it elsewhere.
func readJSON(r io.Reader, head []byte) (*File, error) {
	switch {
	case bytes.Contains(head, []byte(`"`+jsonstream.DumpSchema+`"`)): // which holds a snapshot
		return readDump(r)
	case bytes.Contains(head, []byte(`"`+jsonstream.SnapshotSchema+`"`)):
		return readSnapshot(r)
	}
	text, err := bounded.ReadAll(r, maxUnnamed)
	if err != nil {
		return nil, fmt.Errorf("the schema is not among the first bytes: %w", err)
	}
	var top struct{ Schema string }
	switch err = json.Unmarshal(text, &top); {
	case err == nil && top.Schema == jsonstream.DumpSchema:
		return readDump(bytes.NewReader(text))
	case err == nil && top.Schema == jsonstream.SnapshotSchema:
		return readSnapshot(bytes.NewReader(text))
	case err == nil && bytes.Contains(head, []byte(`"traceEvents"`)):
		return nil, fmt.Errorf("%w: trace events are for a viewer such as ui.perfetto.dev: read the dump that they were made of", ErrFormat)
	case err == nil && bytes.Contains(text, []byte("bfc_")): // a notebook, whose output has a log
		if f, err := readLog(bytes.NewReader(text)); err == nil {
			return f, nil
		}
		fallthrough
	case err == nil:
		return nil, fmt.Errorf("%w: the schema is %q, want %q", ErrFormat, top.Schema, jsonstream.SnapshotSchema)
	}
	return nil, fmt.Errorf("%w: it is not the JSON of one: %w", ErrFormat, err)
}

func readSnapshot(r io.Reader) (*File, error) {
	s, err := snapshot.Read(r)
	if err != nil {
		return nil, err
	}
	return &File{Format: "snapshot", Usage: export.FromSnapshot(s), Dump: &snapshot.Dump{Snapshot: s}}, nil
}

func readDump(r io.Reader) (*File, error) {
	d, err := snapshot.ReadDump(r)
	if err != nil {
		return nil, err
	}
	return &File{Format: "dump", Usage: export.FromDump(d), Dump: d}, nil
}
