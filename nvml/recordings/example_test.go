package recordings_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/gpumemtrack/gpumemtrack/nvml/recordings"
)

// The peak of each GPU in a log of nvidia-smi.
func ExampleReadFile() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "gpu.csv")
	text := "index, memory.used [MiB]\n0, 1129 MiB\n1, 3 MiB\n0, 17333 MiB\n1, 3 MiB\n"
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		log.Fatal(err)
	}

	file, err := recordings.ReadFile(name, recordings.Config{})
	if err != nil {
		log.Fatal(err)
	}
	for _, s := range file.Recording.Series {
		fmt.Println(s.Label(), s.Quantity.Format(s.Max()))
	}
	// Output:
	// GPU 0 memory used 16.9 GiB
	// GPU 1 memory used 3.0 MiB
}
