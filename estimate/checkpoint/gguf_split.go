package checkpoint

import (
	"fmt"
	"path/filepath"
	"strings"
)

// openGGUF reads a GGUF file. If it is one part of a split model, it reads all parts, which must
// lie beside it. The metadata come from the first part.
func openGGUF(path string) (*ggufFile, error) {
	g, err := readHeader(path, readGGUF)
	if err != nil {
		return nil, err
	}
	count, err := g.whole("split.count", 1)
	if err != nil || count <= 1 {
		return g, err
	}
	prefix, err := splitPrefix(g.file, count)
	if err != nil {
		return nil, err
	}
	var model *ggufFile
	names := map[string]string{}
	for i := range count {
		file := splitName(prefix, i, count)
		part, err := readHeader(filepath.Join(filepath.Dir(path), file), readGGUF)
		if err != nil {
			return nil, fmt.Errorf("open part %d of %d: %w", i+1, count, err)
		}
		if n, err := part.whole("split.no", -1); err != nil || n != i {
			return nil, inFile(file, "its split.no is not %d, as its name says", i)
		}
		for _, t := range part.tensors {
			if other, ok := names[t.Name]; ok {
				return nil, atTensor(file, t.Name, "%s holds it too", other)
			}
			names[t.Name] = file
		}
		if model == nil {
			model = part
			continue
		}
		model.tensors = append(model.tensors, part.tensors...)
	}
	if n, err := model.whole("split.tensors.count", len(model.tensors)); err != nil || n != len(model.tensors) {
		return nil, inFile(model.file, "the parts hold %d tensors, but split.tensors.count is %d", len(model.tensors), n)
	}
	return model, nil
}

// splitName returns the name that llama.cpp's gguf-split gives to part i, counted from 0.
func splitName(prefix string, i, count int) string {
	return fmt.Sprintf("%s-%05d-of-%05d.gguf", prefix, i+1, count)
}

// splitPrefix returns what the names of all parts begin with.
func splitPrefix(file string, count int) (string, error) {
	suffix := fmt.Sprintf("-of-%05d.gguf", count)
	rest, ok := strings.CutSuffix(file, suffix)
	if cut := len(rest) - len("-00001"); ok && cut >= 0 && rest[cut] == '-' {
		return rest[:cut], nil
	}
	return "", inFile(file, "it is one of %d parts, but its name does not end in %q: the others cannot be found", count, "-NNNNN"+suffix)
}

// isSplit reports whether the files are the parts of one model and no others.
func isSplit(files []string) bool {
	for i, file := range files {
		prefix, err := splitPrefix(file, len(files))
		if err != nil || file != splitName(prefix, i, len(files)) {
			return false
		}
	}
	return true
}
