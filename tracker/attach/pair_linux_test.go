//go:build amd64 || arm64

package attach

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/long"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/ledger"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/probes"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/procfs"
)

// TestAllocatorsInLibraries: docs/recipes.md has these.
func TestAllocatorsInLibraries(t *testing.T) {
	for name, test := range map[string]struct {
		tool    string
		compile []string // the library; the output's path and the folder of libcuda follow
		client  string
		pair    string
		kind    string
	}{
		"C": {
			compiler(), []string{"-g", "-O2", "-shared", "-fPIC", "testdata/pool.c"}, "POOL",
			"libpool.so:pool_alloc(size=2,out=3),pool_free(address=2)", "pool_alloc",
		},
		"like the driver's": {
			compiler(), []string{"-g", "-O2", "-shared", "-fPIC", "-DSTUBS", "testdata/pool.c"}, "POOL",
			"libpool.so:pool_alloc(size=2,out=3),pool_free(address=2)", "pool_alloc",
		},
		"with endbr64": {
			compiler(), []string{"-g", "-O0", "-shared", "-fPIC", "-fcf-protection=branch", "testdata/pool.c"}, "POOL",
			"libpool.so:pool_alloc(size=2,out=3),pool_free(address=2)", "pool_alloc",
		},
		"C++": {
			"g++", []string{"-g", "-O2", "-shared", "-fPIC", "testdata/arena.cc"}, "ARENA",
			"libarena.so:arena::Pool::take(size=2),arena::Pool::give(address=2)", "arena::Pool::take",
		},
		"told": {
			"g++", []string{"-g", "-O2", "-shared", "-fPIC", "testdata/told.cc"}, "TOLD",
			"libtold.so:c10::reportMemoryUsageToProfiler(size=2,address=1,signed)", "c10::reportMemoryUsageToProfiler",
		},
		"Rust": {
			"rustc", []string{"-O", "--crate-type", "cdylib", "--crate-name", "slab", "-l", "cuda", "testdata/slab.rs"}, "SLAB",
			"libslab.so:slab::take,slab::give", "slab::take",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "C" && name != "C++" {
				long.Test(t, "builds one more library")
			}
			if _, err := exec.LookPath(test.tool); err != nil {
				t.Skip("there is no ", test.tool)
			}
			if runtime.GOARCH != "amd64" && slices.ContainsFunc(test.compile, func(flag string) bool { return flag == "-DSTUBS" || flag == "-fcf-protection=branch" }) {
				t.Skip("such code is of amd64")
			}
			libs, err := gpuemu.Build()
			if err != nil {
				t.Skip(err)
			}
			pair, err := event.ParsePair(test.pair)
			require.NoError(t, err)
			dir := t.TempDir()
			library := filepath.Join(dir, pair.Library)
			text, err := exec.Command(test.tool, append(test.compile, "-o", library, "-L", libs.Dir, "-lcuda")...).CombinedOutput()
			require.NoError(t, err, "%s", text)
			path := filepath.Join(dir, "pieces")
			text, err = exec.Command(compiler(), "-g", "-O1", "-fno-omit-frame-pointer", "-D"+test.client, "-o", path, "testdata/pieces.c",
				library, "-Wl,-rpath,"+dir, "-L"+libs.Dir, "-l:libcuda.so.1", "-lpthread").CombinedOutput()
			require.NoError(t, err, "%s", text)

			pair.Library = library
			w := newWatcher(t, Config{pairs: []event.Pair{pair}})
			s := checked(t, w, start(t, w, path))
			device, ordinal := s.Device()
			assert.Equal(t, "GPU", device)
			assert.Zero(t, ordinal)
			assert.EqualValues(t, test.kind, largest(t, s).Kind)
			assert.Positive(t, s.Snapshot().Total.Count-s.Snapshot().Live.Count)
		})
	}

	_, err := New(Config{pairs: []event.Pair{{Library: "/no/such/lib.so", Alloc: "a", Free: "b", Size: 1, Address: 1}}})
	assert.Error(t, err)
}

// TestExceptions: they pass through the functions that are watched. A return probe of the kernel would end the program.
func TestExceptions(t *testing.T) {
	path := build(t, "thrower", func(out, _ string) *exec.Cmd {
		return exec.Command("g++", "-g", "-O2", "-Wall", "-Werror", "-o", out, "testdata/thrower.cc")
	})
	for name, oldest := range map[string]int{"newest": probes.Newest, "before 6.6": probes.Before6_6, "before 5.15": probes.Before5_15} {
		t.Run(name, func(t *testing.T) {
			w := newWatcher(t, Config{Functions: []string{path + ":Pool::take(size=2),Pool::give(address=2)"}, oldest: oldest})
			c := start(t, w, path)
			s := checked(t, w, c)
			assert.EqualValues(t, 50+17, s.Snapshot().Total.Count, "one more after each exception that is a text")
			assert.Equal(t, 0, c.end(t))
		})
	}
	_, err := New(Config{Functions: []string{path + ":Pool::taken(size=2),Pool::give(address=2)"}})
	if err == nil {
		w := newWatcher(t, Config{Functions: []string{path + ":Pool::taken(size=2),Pool::give(address=2)"}})
		c := start(t, w, path, "tail")
		c.live(t)
		w.Sync()
		assert.Contains(t, strings.Join(w.Warnings(), "\n"), "name a function that it calls")
		assert.Equal(t, 0, c.end(t))
		return
	}
	assert.ErrorContains(t, err, "name a function that it calls")
}

// TestFunctionsThatReturnNothing: their parameters do not say so, but DWARF or the name of a template does.
func TestFunctionsThatReturnNothing(t *testing.T) {
	for name, test := range map[string]struct{ flag, functions string }{
		"malloc":   {"-g", ":Pool::malloc(size=4,out=2),Pool::free(address=2)"},
		"allocate": {"-g", ":Pool::allocate(size=3,out=1),Pool::free(address=2)"},
		"take":     {"-g0", ":take(size=2,out=1),give"},
	} {
		t.Run(name, func(t *testing.T) {
			if runtime.GOARCH == "arm64" && name == "allocate" {
				t.Skip("the place for a struct is in no argument's register")
			}
			path := build(t, "silent", func(out, _ string) *exec.Cmd {
				return exec.Command("g++", test.flag, "-O1", "-fno-exceptions", "-Wall", "-Werror", "-o", out, "testdata/silent.cc")
			})
			w := newWatcher(t, Config{Functions: []string{path + test.functions}})
			s := checked(t, w, start(t, w, path, name))
			assert.EqualValues(t, 25, s.Snapshot().Live.Count)
			assert.EqualValues(t, 50, s.Snapshot().Total.Count)
		})
	}
}

// buildPieces builds a program that takes its memory from a library, which only it knows where to find.
func buildPieces(t *testing.T, flags ...string) (library, path string) {
	libs, err := gpuemu.Build()
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	library, path = filepath.Join(dir, "libpool.so"), filepath.Join(dir, "pieces")
	for _, args := range [][]string{
		{"-g", "-O2", "-shared", "-fPIC", "-o", library, "testdata/pool.c", "-L" + libs.Dir, "-lcuda"},
		append(flags, "-g", "-O1", "-DPOOL", "-o", path, "testdata/pieces.c", library, "-Wl,-rpath,"+dir, "-L"+libs.Dir, "-l:libcuda.so.1", "-lpthread"),
	} {
		text, err := exec.Command(compiler(), args...).CombinedOutput()
		require.NoError(t, err, "%s", text)
	}
	return library, path
}

// slowProbes is an event source whose probes a test can see and delay.
type slowProbes struct {
	event.Source
	mu     sync.Mutex
	probed []os.FileInfo
}

func (s *slowProbes) ProbeLibrary(path, library string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, err := os.Stat(path)
	if err == nil {
		s.probed = append(s.probed, info)
	}
	return s.Source.ProbeLibrary(path, library)
}

// wrapped returns a Config of slowProbes. Nobody looks at what programs have loaded.
func wrapped(functions ...string) (Config, *slowProbes) {
	s := &slowProbes{}
	return Config{Functions: functions, searchEvery: time.Hour, wrap: func(of event.Source) event.Source { s.Source = of; return s }}, s
}

// TestALinkedLibrary: a library that is known by its name alone, and that only the program knows where to find, is watched from its
// first call on. Nobody looks at what the program has loaded.
func TestALinkedLibrary(t *testing.T) {
	library, path := buildPieces(t)
	for name, command := range map[string][]string{"the command": {path}, "a child": {"sh", "-c", `"$0" wait; true`, path}} {
		t.Run(name, func(t *testing.T) {
			cfg, probes := wrapped("libpool.so:pool_alloc(size=2,out=3),pool_free(address=2)")
			w := newWatcher(t, cfg)
			c := start(t, w, command[0], command[1:]...)
			if len(command) > 1 { // it waits
				info, err := os.Stat(library)
				require.NoError(t, err)
				require.Eventually(t, func() bool {
					probes.mu.Lock()
					defer probes.mu.Unlock()
					return slices.ContainsFunc(probes.probed, func(f os.FileInfo) bool { return os.SameFile(f, info) })
				}, time.Minute, time.Millisecond)
				fmt.Fprintln(c.in)
			}
			want := c.live(t)
			w.Sync()
			require.NotEmpty(t, want)
			require.Len(t, w.Sources(), 1)
			assert.Equal(t, want, w.Sources()[0].addresses())
			if len(command) == 1 {
				assert.Empty(t, w.Warnings())
			}
		})
	}
}

// ownDriver returns a client, and has it find its own copy of libcuda beside it, of which the watcher knows nothing.
func ownDriver(t *testing.T, dir string) (path string) {
	client := buildC(t, "-DLINKED", "-Wl,--disable-new-dtags,-rpath,$ORIGIN")
	libs, err := gpuemu.Build()
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(dir, 0o755))
	for _, file := range []string{client, filepath.Join(libs.Dir, "libcuda.so.1")} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, filepath.Base(file)), text, 0o755))
	}
	return filepath.Join(dir, "client")
}

// TestCallsBeforeTheProbes: a program ends before the libcuda that it is linked with has probes. The watcher says so.
func TestCallsBeforeTheProbes(t *testing.T) {
	cfg, probes := wrapped()
	w := newWatcher(t, cfg)
	path := ownDriver(t, filepath.Join(t.TempDir(), "own"))
	c := start(t, w, "sh", "-c", `read line; "$0" leak 3 </dev/null; true`, path)
	probes.mu.Lock()
	fmt.Fprintln(c.in)
	want := c.live(t)
	c.end(t)
	probes.mu.Unlock()
	w.Sync()
	assert.Len(t, want, 3)
	assert.Empty(t, w.Sources())
	require.Len(t, w.Warnings(), 1)
	assert.Contains(t, w.Warnings()[0], path[:len(path)-len("client")]+"libcuda.so.1 before it was found")
}

// TestExitedPrograms exited before the first scan: their files have what they were linked with, if they are found. A relative path is found
// from where this process is, or another that is watched, and nothing else with the path is taken for it.
func TestExitedPrograms(t *testing.T) {
	w := newWatcher(t, Config{searchEvery: time.Hour})
	path := ownDriver(t, filepath.Join(t.TempDir(), "own"))
	ended := func(file string, inode uint64) {
		w.discovery.ProgramStarted(event.Program{PID: 1 << 30, Number: event.Now()}, event.File{Path: file, Inode: inode})
	}
	inode := func(file string) uint64 {
		info, err := os.Stat(file)
		require.NoError(t, err)
		return procfs.Inode(info)
	}
	ended("/bin/sh", inode("/bin/sh"))
	t.Chdir("/bin")
	ended("./sh", inode("/bin/sh"))
	t.Chdir("/")
	require.Empty(t, w.Warnings())
	shell := exec.Command("sh", "-c", "echo; read end")
	shell.Dir = "/bin"
	in, err := shell.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, w.Start(shell))
	w.Sync()
	ended("./sh", inode("/bin/sh"))
	require.Empty(t, w.Warnings())
	in.Close()
	shell.Wait()

	ended("./client", inode(path))
	require.Len(t, w.Warnings(), 1)
	assert.Contains(t, w.Warnings()[0], "ended before it was seen what it is linked with")
	ended(path, inode(path))
	require.Len(t, w.Warnings(), 2)
	assert.Contains(t, w.Warnings()[1], "libcuda.so.1 before it was found")
	assert.Empty(t, w.prior)

	other := newWatcher(t, Config{searchEvery: time.Hour})
	other.discovery.ProgramStarted(event.Program{PID: 1 << 30, Number: event.Now()}, event.File{Path: "/bin/sh", Inode: inode(path)})
	assert.Len(t, other.Warnings(), 1, "another file has its path")
}

// TestShortProgramsRaiseNoWarning where nothing was missed: their library was probed before they began.
func TestShortProgramsRaiseNoWarning(t *testing.T) {
	const programs = 40
	w := newWatcher(t, Config{})
	client := buildC(t, "-DLINKED")
	cmd := gpuemu.Command(t, gpuemu.Options{}, "sh", "-c", fmt.Sprintf("for i in $(seq %d); do ./client leak 2; done", programs))
	cmd.Dir = filepath.Dir(client)
	require.NoError(t, w.Start(cmd))
	cmd.Wait()
	w.Sync()
	assert.Len(t, w.Sources(), programs)
	for _, s := range w.Sources() {
		assert.Len(t, s.addresses(), 2)
	}
	require.NoError(t, w.Close())
	assert.Empty(t, w.Warnings())
}

// TestShortLivedProgramsAreExactOrWarned: whether the probes came in time depends on the machine.
func TestShortLivedProgramsAreExactOrWarned(t *testing.T) {
	w := newWatcher(t, Config{searchEvery: time.Hour})
	dir := t.TempDir()
	for i := range 20 {
		path, before := ownDriver(t, filepath.Join(dir, fmt.Sprint(i))), len(w.Sources())
		cmd := gpuemu.Command(t, gpuemu.Options{}, "sh", "-c", `"$0" leak 100 </dev/null; true`, path)
		if i%2 == 1 {
			cmd.Dir, cmd.Args[len(cmd.Args)-1] = filepath.Dir(path), "./client"
		}
		require.NoError(t, w.Start(cmd))
		require.Eventually(t, func() bool {
			w.Sync()
			return len(w.Warnings()) > 0 || len(w.Sources()) > before && len(w.Sources()[0].addresses()) == 100
		}, time.Minute, time.Millisecond)
		w.mu.Lock()
		w.accuracy, w.sources = ledger.Accuracy{Start: w.start}, nil
		w.mu.Unlock()
	}
}

// TestLlamaCpp watches ggml, by which llama.cpp allocates, called from Go without cgo. The library is that of a release, which
// keeps no frame pointers. docs/recipes.md has the flag.
func TestLlamaCpp(t *testing.T) {
	folder := os.Getenv("GPUMEMTRACK_LLAMACPP")
	if folder == "" {
		t.Skip("GPUMEMTRACK_LLAMACPP names no folder with llama.cpp's libraries")
	}
	pair, err := event.ParsePair("ggml=" + filepath.Join(folder, "libggml-base.so"))
	require.NoError(t, err)
	w := newWatcher(t, Config{pairs: []event.Pair{pair}})
	s := checked(t, w, start(t, w, buildGo(t, "ggml", "0"), pair.Library))
	assert.EqualValues(t, 10, s.Snapshot().Live.Count)
	assert.EqualValues(t, 100, s.Snapshot().Total.Count)
	site := largest(t, s)
	assert.Equal(t, "main.loadWeights", site.CallSite.Function)
	assert.Contains(t, names(site.Stack), "main.loadWeights <- main.main")
}
