package files_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch"
)

// ReadFile recognises a file by its content: here a memory snapshot in PyTorch's format.
func ExampleReadFile() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	device, _ := sim.New(sim.Config{})
	tr, _ := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	defer tr.Close()
	tr.Alloc(alloc.Shape{30, 3, 512, 512}, alloc.Float32, tracker.Input)
	path := filepath.Join(dir, "memory")
	out, err := os.Create(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := torch.Write(out, tr.Dump()); err != nil {
		fmt.Println(err)
		return
	}
	out.Close()

	f, err := files.ReadFile(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(f.Format, "-", f.Dump.Snapshot.Live)
	// Output: PyTorch snapshot - 1 buffer, 90.0 MiB
}
