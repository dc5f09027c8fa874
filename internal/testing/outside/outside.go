// Package outside finds files for tests that are not part of the repository, such as recordings from
// real GPUs. Tests that need one are skipped where it is missing; this package says which and
// where it was looked for.
package outside

import (
	"os"
	"path/filepath"
	"testing"
)

// Variable is the environment variable that names the folder of these files.
const Variable = "GPUMEMTRACK_SHARED"

// Folder is a folder of that name in the one that Variable names or, where it is not set, in a folder "shared"
// beside the project or above it. Without one the test is skipped.
func Folder(t testing.TB, name string) string {
	t.Helper()
	if shared := os.Getenv(Variable); shared != "" {
		return existing(t, filepath.Join(shared, name))
	}
	at, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; at != filepath.Dir(at); at = filepath.Dir(at) {
		if info, err := os.Stat(filepath.Join(at, "shared", name)); err == nil && info.IsDir() {
			return filepath.Join(at, "shared", name)
		}
	}
	t.Skipf("no folder shared/%s in a folder above, and %s names none: these files are not part of the project", name, Variable)
	return ""
}

// existing is a folder that was named: without it the test fails, since it was meant to run.
func existing(t testing.TB, dir string) string {
	t.Helper()
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		t.Fatalf("%s names the folder around %s, which is not there", Variable, dir)
	}
	return dir
}
