package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"

	"github.com/gpumemtrack/gpumemtrack/internal/userfile"
)

// fileKinds are the files that people confuse, by what they begin with, and the
// command for each.
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
	{"a model's file", "estimate", func(head []byte) bool {
		return bytes.HasPrefix(head, []byte("GGUF")) || len(head) > 9 && head[8] == '{' && bytes.Equal(head[4:8], make([]byte, 4))
	}},
	{"a page", "", func(head []byte) bool {
		return bytes.HasPrefix(bytes.ToLower(bytes.TrimSpace(head)), []byte("<!doctype html")) ||
			bytes.HasPrefix(bytes.ToLower(bytes.TrimSpace(head)), []byte("<html"))
	}},
}

// withRightCommand adds to an error of a file that is of the wrong kind what it is,
// and which command is for it.
func withRightCommand(err error, path string) error {
	head := headOf(path)
	for _, kind := range fileKinds {
		switch {
		case !kind.is(head):
		case kind.command == "":
			return fmt.Errorf("%s is %s: open it in a browser", path, kind.what)
		default:
			return fmt.Errorf("%s is %s: run %s %s %s", path, kind.what, programName, kind.command, path)
		}
	}
	return err
}

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
		head, _ = io.ReadAll(io.LimitReader(zip, enough)) // an unexpected end: the rest was not read
	}
	return head
}
