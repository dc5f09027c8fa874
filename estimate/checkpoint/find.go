package checkpoint

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// findModel returns the file in a directory that ReadFile should read.
func findModel(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	for _, suffix := range []string{indexSuffix, ".safetensors", ".gguf", configName} {
		var found []string
		for _, entry := range entries {
			if name := entry.Name(); strings.HasSuffix(name, suffix) && (suffix != configName || name == configName) {
				found = append(found, name)
			}
		}
		if models := slices.DeleteFunc(slices.Clone(found), isProjector); len(models) > 0 {
			found = models
		}
		if suffix == ".gguf" && len(found) > 1 && isSplit(found) {
			found = found[:1]
		}
		switch len(found) {
		case 0:
		case 1:
			return filepath.Join(dir, found[0]), nil
		default:
			return "", inFile(filepath.Base(dir), "the folder holds %d models, %s and %s among them: open one of them by its name", len(found), found[0], found[1])
		}
	}
	return "", inFile(filepath.Base(dir), "the folder holds no safetensors file, no GGUF file and no %s", configName)
}

// isProjector reports whether a file's name is that of a projector beside a model, as llama.cpp's
// converter and download tools name them.
func isProjector(name string) bool {
	return strings.HasSuffix(name, ".gguf") && strings.Contains(strings.ToLower(name), "mmproj")
}

type modelFormat int

const (
	formatSafetensors modelFormat = iota + 1
	formatIndex
	formatGGUF
	formatConfig
)

// formatOf tells a file's format by its name, so that the error of a damaged file
// can say what is damaged, and by its first bytes where the name tells nothing.
func formatOf(path string) (modelFormat, error) {
	file := filepath.Base(path)
	switch {
	case strings.HasSuffix(file, ".safetensors"):
		return formatSafetensors, nil
	case strings.HasSuffix(file, indexSuffix):
		return formatIndex, nil
	case strings.HasSuffix(file, ".gguf"):
		return formatGGUF, nil
	case strings.HasSuffix(file, ".json"):
		return formatConfig, nil
	}
	return readHeader(path, func(r io.ReaderAt, size int64, file string) (modelFormat, error) {
		start := make([]byte, min(size, 9))
		if _, err := r.ReadAt(start, 0); err != nil {
			return 0, &fileError{file: file, err: err}
		}
		switch {
		case strings.HasPrefix(string(start), "GGUF"):
			return formatGGUF, nil
		case strings.HasPrefix(string(start), "PK\x03\x04"):
			return 0, inFile(file, "it is a ZIP file, perhaps PyTorch's, which holds code and is not read: save it as safetensors")
		case len(start) == 9 && start[8] == '{':
			return formatSafetensors, nil
		}
		return 0, inFile(file, "neither its name nor its first bytes are those of safetensors, GGUF or %s", configName)
	})
}

// nameOf returns what people call the model at a path.
func nameOf(path string) string {
	if full, err := filepath.Abs(path); err == nil {
		path = full
	}
	name := filepath.Base(path)
	for _, suffix := range []string{indexSuffix, ".safetensors", ".gguf", ".json"} {
		if stem, ok := strings.CutSuffix(name, suffix); ok {
			if stem == "model" || name == configName || name == pipelineName {
				return filepath.Base(filepath.Dir(path))
			}
			return stem
		}
	}
	return name
}
