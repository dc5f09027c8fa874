// Package files opens what the exporters and other programs write. It recognises a file by its
// contents, not by its name: snapshots and dumps of this module, pprof profiles, PyTorch's memory
// snapshots, traces and memory timelines of its profiler, logs of RMM, and logs of BFC allocators. Each
// may be packed by gzip.
package files

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/inputs"
	"github.com/gpumemtrack/gpumemtrack/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/internal/userfile"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/internal/bfc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/kineto"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/pprof"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/rmm"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// File is a file that was read.
type File struct {
	Format string        `json:"format"` // such as "dump", "pprof profile", "PyTorch snapshot" or "log of RMM"
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
func Read(in io.Reader) (*File, error) { return filled(ReadDeferred(in)) }

// filled adds the rows to the usage of a file.
func filled(f *File, err error) (*File, error) {
	if err == nil {
		f.Usage.Fill()
	}
	return f, err
}

// ReadDeferred is Read for who may not need the rows of the usage: of a file with a dump, Usage.Fill adds them. The errors
// are those of Read.
func ReadDeferred(in io.Reader) (*File, error) {
	r, head, err := begin(in)
	if err != nil {
		return nil, err
	}
	return read(r, head, inputs.For("show", head))
}

// ReadAs reads a file as one of a kind, such as "dump" or "pytorch-snapshot", whatever it begins with. The kinds have the
// names that the page "gpumemtrack help inputs" lists. The errors are those of Read, and one of a name that it does not list.
func ReadAs(in io.Reader, kind string) (*File, error) { return filled(ReadDeferredAs(in, kind)) }

// ReadDeferredAs is to ReadAs what ReadDeferred is to Read. The errors are those of ReadAs.
func ReadDeferredAs(in io.Reader, kind string) (*File, error) {
	k, err := inputs.ByName(kind)
	if err != nil {
		return nil, err
	}
	r, head, err := begin(in)
	if err != nil {
		return nil, err
	}
	return read(r, head, k)
}

// ReadLive reads what is live at the end of the history in a file, if it stands before the history, and no more of the file than
// that takes: an answer at once of a recording that takes long to read. So do snapshots of PyTorch; of other files, ok is
// false. The errors are those of ReadFile, without the name.
func ReadLive(in io.Reader) (f *File, ok bool, err error) {
	r, head, err := begin(in)
	if err != nil || inputs.For("show", head) != inputs.PyTorchSnapshot {
		return nil, false, err
	}
	d, usage, ok, err := torch.ReadLive(r)
	if !ok || err != nil {
		return nil, false, err
	}
	return &File{Format: "PyTorch snapshot", Usage: usage, Dump: d}, true, nil
}

// begin returns a reader of an input, and the beginning of what it will read.
func begin(in io.Reader) (*bounded.Reader, []byte, error) {
	r, err := bounded.NewReader(in, 0)
	if err != nil {
		return nil, nil, err
	}
	head, err := r.Peek(inputs.HeadSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, bounded.Torn(err)
	}
	if len(head) == 0 {
		return nil, nil, fmt.Errorf("%w: the file is empty", ErrFormat)
	}
	return r, head, nil
}

func read(r *bounded.Reader, head []byte, kind *inputs.Kind) (*File, error) {
	switch kind {
	case inputs.Dump:
		return readDump(r)
	case inputs.Snapshot:
		return readSnapshot(r)
	case inputs.PyTorchSnapshot:
		return readTorch(r)
	case inputs.Profile:
		return readProfile(r)
	case inputs.RMM:
		return readRMM(r)
	case inputs.Kineto:
		return readKineto(r)
	case inputs.MemoryTimeline:
		return readTimeline(r)
	case nil:
		return nil, unknown(head)
	}
	switch {
	case kind == inputs.Text && bytes.HasPrefix(bytes.TrimLeft(head, " \t\r\n"), []byte("{")):
		return readJSON(r)
	case kind.Log(), kind == inputs.Text:
		f, err := readLog(r)
		switch {
		case !errors.Is(err, bfc.ErrNoFailure):
			return f, err
		case err != bfc.ErrNoFailure: //nolint:errorlint // an error around it says more
			return nil, fmt.Errorf("%w: %w", ErrFormat, err)
		case kind != inputs.Text:
			return nil, fmt.Errorf("%w: it is %s", ErrFormat, kind.What)
		}
		return nil, unknown(head)
	case kind.Instead != "":
		return nil, fmt.Errorf("%w: it is %s: %s", ErrFormat, kind.What, kind.Instead)
	}
	return nil, fmt.Errorf("%w: it is %s", ErrFormat, kind.What)
}

// unknown is the error of a file of no known kind.
func unknown(head []byte) error {
	return fmt.Errorf("%w: it begins with %q, as no known kind of file does", ErrFormat, head[:min(8, len(head))])
}

func readTorch(r io.Reader) (*File, error) {
	d, usage, err := torch.ReadDump(r)
	if err != nil {
		return nil, err
	}
	return &File{Format: "PyTorch snapshot", Usage: usage, Dump: d}, nil
}

func readKineto(r io.Reader) (*File, error) {
	d, usage, err := kineto.Read(r)
	if errors.Is(err, kineto.ErrNoMemory) {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if err != nil {
		return nil, err
	}
	return &File{Format: "trace of PyTorch's profiler", Usage: usage, Dump: d}, nil
}

func readTimeline(r io.Reader) (*File, error) {
	usage, err := kineto.ReadTimeline(r)
	if err != nil {
		return nil, err
	}
	return &File{Format: "memory timeline", Usage: usage}, nil
}

func readRMM(r io.Reader) (*File, error) {
	d, usage, err := rmm.Read(r)
	if errors.Is(err, rmm.ErrNoEvent) {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if err != nil {
		return nil, err
	}
	return &File{Format: "log of RMM", Usage: usage, Dump: d}, nil
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

// readJSON reads an object whose beginning does not say what it is. This module writes the schema first; a program that
// sorts keys puts it elsewhere.
func readJSON(r io.Reader) (*File, error) {
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
	case err == nil && bytes.Contains(text, []byte("bfc_")): // a notebook, whose output has a log
		if f, err := readLog(bytes.NewReader(text)); err == nil {
			return f, nil
		}
		fallthrough
	case err == nil:
		return nil, fmt.Errorf("%w: the schema is %q, want %q", ErrFormat, top.Schema, jsonstream.SnapshotSchema)
	}
	return nil, fmt.Errorf("%w: its JSON is damaged, or ends too early", ErrFormat)
}

func readSnapshot(r io.Reader) (*File, error) {
	s, err := snapshot.Read(r)
	if err != nil {
		return nil, err
	}
	d := &snapshot.Dump{Snapshot: s}
	return &File{Format: "snapshot", Usage: export.DeferDump(d), Dump: d}, nil
}

func readDump(r io.Reader) (*File, error) {
	d, err := snapshot.ReadDump(r)
	if err != nil {
		return nil, err
	}
	return &File{Format: "dump", Usage: export.DeferDump(d), Dump: d}, nil
}
