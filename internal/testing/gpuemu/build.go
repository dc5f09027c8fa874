package gpuemu

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
)

//go:embed src
var sources embed.FS

// Libs says where the built libraries are.
type Libs struct {
	Dir string // libcuda.so.1, libcuda.so to link against, libnvidia-ml.so.1
	Old string // the same, with an NVML of 2020: memory info and process lists in version 1 only
}

var built = sync.OnceValues(build)

// Build compiles the libraries, or finds them in the user's cache, in a folder named by a hash of their
// sources. It may be called from any goroutine.
func Build() (Libs, error) { return built() }

// Available says why nothing can run under the emulated driver here, or nil.
func Available() error {
	_, err := Build()
	return err
}

func compiler() ([]string, error) {
	if runtime.GOOS != "linux" {
		return nil, errors.New("gpuemu: the emulated driver runs on linux only")
	}
	if runtime.GOARCH == "386" {
		return nil, errors.New("gpuemu: a program of 32 bits cannot load the emulated driver")
	}
	if cc := strings.Fields(os.Getenv("CC")); len(cc) > 0 {
		return cc, nil
	}
	for _, cc := range []string{"gcc", "cc", "clang"} {
		if path, err := exec.LookPath(cc); err == nil {
			return []string{path}, nil
		}
	}
	return nil, errors.New("gpuemu: no C compiler: install gcc, or set CC")
}

func build() (Libs, error) {
	cc, err := compiler()
	if err != nil {
		return Libs{}, err
	}
	key, err := sourceHash(cc)
	if err != nil {
		return Libs{}, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = filepath.Join(os.TempDir(), fmt.Sprintf("cache-%d", os.Getuid()))
	}
	dir := filepath.Join(cache, "gpumemtrack", "gpuemu-"+key)
	if _, err := os.Stat(dir); err != nil {
		if err := buildInto(dir, cc); err != nil {
			return Libs{}, err
		}
	}
	return Libs{Dir: dir, Old: filepath.Join(dir, "old")}, nil
}

func sourceHash(cc []string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, runtime.GOARCH, cc)
	err := fs.WalkDir(sources, "src", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := sources.ReadFile(path)
		fmt.Fprintln(h, path, len(text))
		h.Write(text)
		return err
	})
	return hex.EncodeToString(h.Sum(nil))[:16], err
}

// buildInto builds beside dir and moves the result there whole: processes that
// build at the same time get one of the results.
func buildInto(dir string, cc []string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("gpuemu: cache: %w", err)
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), "building-*")
	if err != nil {
		return fmt.Errorf("gpuemu: cache: %w", err)
	}
	defer os.RemoveAll(temp)
	if err := os.CopyFS(temp, sources); err != nil {
		return fmt.Errorf("gpuemu: cache: %w", err)
	}
	if err := compileAll(cc, temp); err != nil {
		return err
	}
	if err := os.Rename(temp, dir); err != nil {
		if _, there := os.Stat(dir); there == nil {
			return nil
		}
		return fmt.Errorf("gpuemu: cache: %w", err)
	}
	return nil
}

func compileAll(cc []string, dir string) error {
	old := filepath.Join(dir, "old")
	if err := os.Mkdir(old, 0o755); err != nil {
		return fmt.Errorf("gpuemu: cache: %w", err)
	}
	if err := compile(cc, dir, "cuda_*.c", "libcuda.so.1"); err != nil {
		return err
	}
	if err := compile(cc, dir, "nvml*.c", "libnvidia-ml.so.1"); err != nil {
		return err
	}
	if err := compile(cc, dir, "nvml*.c", "old/libnvidia-ml.so.1", "-DGPUEMU_OLD"); err != nil {
		return err
	}
	return errors.Join(
		os.Symlink("libcuda.so.1", filepath.Join(dir, "libcuda.so")),
		os.Symlink("../libcuda.so.1", filepath.Join(old, "libcuda.so.1")),
	)
}

func compile(cc []string, dir, pattern, library string, flags ...string) error {
	files, err := filepath.Glob(filepath.Join(dir, "src", pattern))
	if err != nil {
		return err
	}
	for _, common := range []string{"state.c", "settings.c"} {
		files = append(files, filepath.Join(dir, "src", common))
	}
	args := append(cc[1:len(cc):len(cc)], "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden",
		"-Wl,-soname,"+filepath.Base(library), "-o", filepath.Join(dir, library))
	args = append(append(args, flags...), files...)
	args = append(args, "-lpthread")
	if out, err := exec.Command(cc[0], args...).CombinedOutput(); err != nil {
		return fmt.Errorf("gpuemu: %s does not build: %w\n%s", library, err, out)
	}
	return nil
}
