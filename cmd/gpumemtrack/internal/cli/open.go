package cli

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/userfile"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

const stdinName = "standard input"

// Open reads what an argument names: a file, - for standard input, or the URL of a live page. The
// data may unpack to at most the limit; 0 means the usual one.
func Open(a *App, word string, limit alloc.Bytes) (*files.File, error) {
	LimitMemory(limit)
	switch {
	case word == "-":
		return readFrom(a.Stdin, stdinName, limit)
	case IsURL(word):
		return fetch(word, limit)
	}
	f, err := files.ReadFileWithin(word, limit)
	if errors.Is(err, files.ErrFormat) {
		err = WithRightCommand(err, word, "show")
	}
	return f, err
}

func IsURL(word string) bool {
	return strings.HasPrefix(word, "http://") || strings.HasPrefix(word, "https://")
}

// ErrNoDump is the error of a file that has no dump.
var ErrNoDump = errors.New("want a dump, or a memory snapshot of PyTorch")

// OpenDump reads the dump of a device; -1 means the leading device.
func OpenDump(a *App, word string, device int) (*snapshot.Dump, error) {
	f, err := Open(a, word, 0)
	if err != nil {
		return nil, err
	}
	return DumpOf(f, word, device)
}

// DumpOf returns the dump of one device in a file.
func DumpOf(f *files.File, word string, device int) (*snapshot.Dump, error) {
	devices, err := DevicesOf(f, word)
	if err != nil {
		return nil, err
	}
	if device < 0 {
		return devices[Leading(devices)], nil
	}
	for _, r := range devices {
		if r.Snapshot.Ordinal == device {
			return r, nil
		}
	}
	return nil, UsageError("--device %d: %s has no such device", device, word)
}

// DevicesOf returns the dumps of all devices in a file.
func DevicesOf(f *files.File, word string) ([]*snapshot.Dump, error) {
	if f.Dump == nil {
		return nil, fmt.Errorf("%s is a %s: %w", word, f.Format, ErrNoDump)
	}
	return append([]*snapshot.Dump{f.Dump}, f.Dump.Others...), nil
}

// Leading returns the index of the device that a file is about: the one whose request failed, or
// else the first, which has most memory.
func Leading(devices []*snapshot.Dump) int {
	return max(0, slices.IndexFunc(devices, func(d *snapshot.Dump) bool { return d.OOM != nil }))
}

// fetch reads the dump of a live page.
func fetch(address string, limit alloc.Bytes) (*files.File, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, UsageError("%w", err)
	}
	if !strings.HasSuffix(u.Path, "/dump") {
		u = u.JoinPath("dump")
	}
	client := http.Client{Timeout: time.Minute}
	answer, err := client.Get(u.String())
	if err != nil {
		return nil, fmt.Errorf("no live page answers: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%v: %s: want the URL of a live page, such as http://localhost:6061/debug/gpumem/", u, answer.Status)
	}
	f, err := readFrom(answer.Body, u.String(), limit)
	if err == nil {
		f.Usage.Name = address
	}
	return f, err
}

// readFrom reads a file that has a name and no path.
func readFrom(in io.Reader, name string, limit alloc.Bytes) (*files.File, error) {
	r, err := bounded.NewReader(in, int64(limit))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	f, err := files.Read(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	f.Usage.Name = name
	return f, nil
}

// fileKinds lists files that are easily confused, by their first bytes, with the right command for each.
var fileKinds = []struct {
	what, command string
	is            func(head []byte) bool
}{

	{"a recording of GPU memory", "chart", func(head []byte) bool {
		return bytes.Contains(head, []byte(`"gpumemtrack.recording/`)) || bytes.HasPrefix(head, []byte("time_seconds,gpu,"))
	}},
	{"a snapshot or dump", "show", func(head []byte) bool {
		return bytes.Contains(head, []byte(`"gpumemtrack.snapshot"`)) || bytes.Contains(head, []byte(`"gpumemtrack.dump"`))
	}},
	{"a memory snapshot of PyTorch", "show", func(head []byte) bool {
		return bytes.HasPrefix(head, []byte("\x80")) && bytes.Contains(head, []byte("segments"))
	}},
	{"a model's file", "estimate", isModel},
	{"a page", "", func(head []byte) bool {
		return bytes.HasPrefix(bytes.ToLower(bytes.TrimSpace(head)), []byte("<!doctype html")) ||
			bytes.HasPrefix(bytes.ToLower(bytes.TrimSpace(head)), []byte("<html"))
	}},
}

// isModel reports whether a file begins like a model's: GGUF, safetensors (the header's length in
// eight bytes, then the header's JSON), a file of torch.save (a ZIP of pickles), or the JSON that
// lies beside weights.
func isModel(head []byte) bool {
	switch {
	case bytes.HasPrefix(head, []byte("GGUF")):
		return true
	case len(head) > 9 && head[8] == '{' && bytes.Equal(head[4:8], make([]byte, 4)):
		return true
	case bytes.HasPrefix(head, []byte("PK\x03\x04")):
		return bytes.Contains(head, []byte("/data.pkl"))
	case !bytes.HasPrefix(bytes.TrimSpace(head), []byte("{")):
		return false
	}
	return slices.ContainsFunc([]string{`"model_type"`, `"architectures"`, `"_class_name"`, `"weight_map"`}, func(key string) bool {
		return bytes.Contains(head, []byte(key))
	})
}

// WithRightCommand adds to err what the file is and which command reads it, if its first bytes show
// that it belongs to another command than the one that failed. Otherwise it returns err.
func WithRightCommand(err error, path, failed string) error {
	head := headOf(path)
	for _, kind := range fileKinds {
		switch {
		case !kind.is(head) || kind.command == failed:
		case kind.command == "":
			return &misplaced{err, fmt.Sprintf("%s is %s: open it in a browser", path, kind.what)}
		default:
			return &misplaced{err, fmt.Sprintf("%s is %s: run %s %s %s", path, kind.what, ProgramName, kind.command, path)}
		}
	}
	return err
}

// misplaced is the error of a file that belongs to another command. It wraps the error that it
// replaces, so that such files of a directory are skipped.
type misplaced struct {
	error
	instead string
}

func (m *misplaced) Error() string { return m.instead }

func (m *misplaced) Unwrap() error { return m.error }

// headOf returns the beginning of a file, unpacked; nil if it cannot be read.
func headOf(path string) []byte {
	f, err := userfile.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	const enough = 4096
	head, _ := io.ReadAll(io.LimitReader(f, enough))
	if zip, err := gzip.NewReader(bytes.NewReader(head)); err == nil {
		head, _ = io.ReadAll(io.LimitReader(zip, enough)) // an unexpected end is normal: the rest was not read
	}
	return head
}
