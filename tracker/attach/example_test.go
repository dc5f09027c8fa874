package attach_test

import (
	"fmt"
	"os"
	"os/exec"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// A program that starts another one, ./train, watches it, and lists the buffers that it never freed. It is compiled and not run,
// because it needs root.
func Example() {
	w, err := attach.New(attach.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer w.Close()

	cmd := exec.Command("./train")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := w.Start(cmd); err != nil {
		fmt.Println(err)
		return
	}
	if err := cmd.Wait(); err != nil {
		fmt.Println(err)
	}
	for _, source := range w.Sources() {
		for _, leak := range leaks.Live(source.Snapshot()) {
			fmt.Println(source.Origin(), "still held", leak)
		}
	}
}
