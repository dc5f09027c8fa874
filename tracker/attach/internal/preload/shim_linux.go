//go:build amd64 || arm64

package preload

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
)

//go:embed shim
var shimSource embed.FS

// socketVariable is the environment variable with the address of the watcher: TOKEN:NAME:FILE.
const socketVariable = "GPUMEMTRACK_ATTACH"

// shim is a library in front of libcuda, for users without the privileges for probes.
type shim struct {
	Dir   string // folder of the shim, libcuda.so.1
	Token string // proves that a process was started with the shim: any process can find the socket
	Name  string // of the socket, abstract
	File  string // of another socket, for programs in other network namespaces; "" if there is none
}

// Environ adds the variables that make a program load the shim.
func (p shim) Environ(env []string) []string {
	const variable = "LD_LIBRARY_PATH="
	dirs := p.Dir
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		before, ok := strings.CutPrefix(v, variable)
		if ok && before != "" {
			dirs = p.Dir + string(filepath.ListSeparator) + before
		}
		return ok || strings.HasPrefix(v, socketVariable+"=")
	})
	return append(env, variable+dirs, socketVariable+"="+p.Token+":"+p.Name+":"+p.File)
}

// shimFlags returns the function's flags as shim.c numbers them.
func shimFlags(f event.Function) (flags int) {
	for i, is := range []bool{f.Effect.AppliesAtEntry(), f.Effect.EntryOnly(), f.Effect.RecordsStack(), f.WritesResult(), f.Effect == event.AllocatesPitched} {
		if is {
			flags |= 1 << i
		}
	}
	return flags
}

// descriptorSize returns the size of the descriptor that the shim copies: CUDA_ARRAY_DESCRIPTOR or
// CUDA_ARRAY3D_DESCRIPTOR.
func descriptorSize(f event.Function) int {
	switch f.Effect {
	case event.AllocatesArray:
		return 24
	case event.AllocatesArray3D, event.AllocatesMipmapped:
		return 40
	}
	return 0
}

// argumentForm returns the shape of the function's arguments as shim.c names it.
func argumentForm(f event.Function) string {
	if f.Handle {
		return "HANDLE"
	}
	return "WORDS"
}

// hooks returns hooks.h: the driver's file, how long a call waits, and a line for each layout of Python,
// for each version with debug offsets, and for each function that the driver's library has.
func hooks(functions []event.Function, driver string, has map[string]uint64, waitMS int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "#define DRIVER %q\n#define WAIT_MS %d\n", driver, waitMS)
	places := func(n python.Names) string {
		return fmt.Sprintf(", %d, %d, %d, %d, %d, %d, %d, %d", n.File, n.Name, n.Lines, n.Length, n.ASCII, n.Wide, n.Size, n.Bytes)
	}
	b.WriteString("#define LAYOUTS")
	for _, l := range python.Layouts() {
		isIndex := 0
		if l.IsIndex {
			isIndex = 1
		}
		fmt.Fprintf(&b, " \\\n\tLAYOUT(%#x, %d, %#x, %d, %d, %d, %d, %#x, %d%s)", l.Version, l.Frame, l.Indirect, l.Previous, l.Code, l.Instruction, isIndex, l.Owner, l.FirstLine, places(l.Names()))
	}
	b.WriteString("\n#define ALL_DEBUG_OFFSETS")
	for _, t := range python.DebugOffsetVersions() {
		fmt.Fprintf(&b, " \\\n\tDEBUG_OFFSETS(%#x, %d, %d, %d, %d, %d, %d%s)", t.Version, t.Frame, t.Previous, t.Code, t.Instruction, t.Owner, t.FirstLine, places(t.Names()))
	}
	b.WriteString("\n#define HOOKS")
	for i, f := range functions {
		for _, symbol := range f.Symbols {
			if has[symbol] != 0 && f.Effect != event.LooksUpFunction {
				fmt.Fprintf(&b, " \\\n\tHOOK(%d, %d, %d, %s, %s)", i, shimFlags(f), descriptorSize(f), symbol, argumentForm(f))
			}
		}
	}
	b.WriteString("\n#define GETTERS")
	for _, symbol := range []string{"cuGetProcAddress", "cuGetProcAddress_v2"} {
		if has[symbol] != 0 { // programs check whether the driver has it
			fmt.Fprintf(&b, " \\\n\tGET(%s)", symbol)
		}
	}
	b.WriteString("\n")
	return b.String()
}

// buildShim compiles the shim for a driver's library, unless it is in the user's cache. headers are the files
// that it includes beside its own.
func buildShim(functions []event.Function, driver string, headers fs.FS, waitMS int) (dir string, err error) {
	has, err := symbols.Offsets(driver, nil)
	if err != nil {
		return "", err
	}
	header := hooks(functions, driver, has, waitMS)
	if !strings.Contains(header, "HOOK(") {
		return "", fmt.Errorf("%s has none of the driver's functions", driver)
	}
	files := map[string]string{"hooks.h": header, "driver.c": ""}
	for _, source := range []fs.FS{shimSource, headers} {
		names, err := fs.Glob(source, "*/*.[ch]")
		if err != nil {
			return "", fmt.Errorf("the shim library: %w", err)
		}
		for _, name := range names {
			text, err := fs.ReadFile(source, name)
			if err != nil {
				return "", fmt.Errorf("the shim library: %w", err)
			}
			files[path.Base(name)] = string(text)
		}
	}
	sum := sha256.New()
	_, _ = io.WriteString(sum, runtime.GOARCH) // a hash returns no error
	for _, name := range slices.Sorted(maps.Keys(files)) {
		_, _ = io.WriteString(sum, files[name])
	}
	name := event.ShimFolder + hex.EncodeToString(sum.Sum(nil)[:8])
	var errs []error
	for _, folder := range []func() (string, error){cacheFolder, temporaryFolder} {
		dir, err := folder()
		if err == nil {
			dir = filepath.Join(dir, name)
			if _, err := os.Stat(filepath.Join(dir, "libcuda.so.1")); err == nil {
				return dir, nil
			}
			temp, err := os.MkdirTemp(filepath.Dir(dir), event.ShimFolder+"building-*")
			if err == nil {
				defer os.RemoveAll(temp)
				return dir, compileShim(temp, dir, files, driver)
			}
			errs = append(errs, err)
			continue
		}
		errs = append(errs, err)
	}
	return "", fmt.Errorf("a folder for the shim library, which XDG_CACHE_HOME can name: %w", errors.Join(errs...))
}

// cacheFolder returns the folder of shims in the user's cache, and makes it if there is none.
func cacheFolder() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "gpumemtrack")
	return dir, os.MkdirAll(dir, 0o755)
}

// temporaryFolder returns the user's own folder of shims among the temporary files. Programs load what is
// in it, so it is refused if another user can write there, and on a file system without programs.
func temporaryFolder() (string, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("gpumemtrack-%d", os.Geteuid()))
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	var info unix.Stat_t
	var system unix.Statfs_t
	if err := errors.Join(unix.Lstat(dir, &info), unix.Statfs(dir, &system)); err != nil {
		return "", fmt.Errorf("%s: %w", dir, err)
	}
	switch {
	case info.Mode&unix.S_IFMT != unix.S_IFDIR || info.Uid != uint32(os.Geteuid()) || info.Mode&0o022 != 0:
		return "", fmt.Errorf("%s: another user can write there", dir)
	case system.Flags&unix.ST_NOEXEC != 0:
		return "", fmt.Errorf("%s: no program may be loaded from there (noexec)", dir)
	}
	return dir, nil
}

// compileShim builds in temp, beside dir, and renames it, so that dir is always complete.
func compileShim(temp, dir string, files map[string]string, driver string) error {
	cc, err := shimCompiler()
	if err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(temp, name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("the shim library: %w", err)
		}
	}
	// An empty library by the driver's path: the shim then depends on that path, not on the
	// name libcuda.so.1, which is its own.
	for _, args := range [][]string{
		{"-o", "driver.so", "driver.c", "-Wl,-soname," + driver},
		{"-O2", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-fvisibility=hidden", "-o", "libcuda.so.1", "shim.c",
			"-Wl,-soname,libcuda.so.1", "-Wl,-z,nodelete", "-Wl,--no-as-needed", "driver.so", "-lpthread", "-ldl"},
	} {
		cmd := exec.Command(cc[0], slices.Concat(cc[1:], []string{"-shared", "-fPIC"}, args)...)
		cmd.Dir = temp
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("the shim library does not build: %w\n%s", err, out)
		}
	}
	// Most programs open libcuda.so.1, and some libcuda.so.
	if err := os.Symlink("libcuda.so.1", filepath.Join(temp, "libcuda.so")); err != nil {
		return fmt.Errorf("the shim library: %w", err)
	}
	if err := os.Chmod(temp, 0o755); err != nil {
		return fmt.Errorf("the shim library: %w", err)
	}
	if err := os.Rename(temp, dir); err != nil {
		if _, there := os.Stat(filepath.Join(dir, "libcuda.so.1")); there == nil {
			return nil // another process was faster
		}
		return fmt.Errorf("the shim library: %w", err)
	}
	return nil
}

func shimCompiler() ([]string, error) {
	if cc := strings.Fields(os.Getenv("CC")); len(cc) > 0 {
		return cc, nil
	}
	for _, name := range []string{"gcc", "cc", "clang"} {
		if file, err := exec.LookPath(name); err == nil {
			return []string{file}, nil
		}
	}
	return nil, errors.New("the shim library needs a C compiler: install gcc, or set CC")
}
