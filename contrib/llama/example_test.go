//go:build !windows

package memtrack_test

import (
	"log"
	"path/filepath"

	"github.com/hybridgroup/yzma/pkg/llama"

	memtrack "github.com/gpumemtrack/gpumemtrack/contrib/llama"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// A program that uses yzma has its model and its context in the report. It is compiled and not run, because it needs llama.cpp's
// library and a model.
func ExampleOpen() {
	const folder = "/opt/llama"
	if err := llama.Load(folder); err != nil {
		log.Fatal(err)
	}
	lib, err := memtrack.Open(filepath.Join(folder, "libllama.so"), tracker.Default())
	if err != nil {
		log.Fatal(err)
	}
	model, err := llama.ModelLoadFromFile("qwen3-8b.gguf", llama.ModelDefaultParams())
	if err != nil {
		log.Fatal(err)
	}
	if err := lib.AddModel(uintptr(model), "qwen3-8b"); err != nil {
		log.Fatal(err)
	}
	ctx, err := llama.InitFromModel(model, llama.ContextDefaultParams())
	if err != nil {
		log.Fatal(err)
	}
	if err := lib.AddContext(uintptr(ctx), "chat"); err != nil {
		log.Fatal(err)
	}
	// ...
	if err := lib.Remove(uintptr(ctx)); err != nil {
		log.Fatal(err)
	}
	llama.Free(ctx)
}
