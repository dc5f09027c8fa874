//go:build !windows

package memtrack_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hybridgroup/yzma/pkg/llama"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	memtrack "github.com/gpumemtrack/gpumemtrack/contrib/llama"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// holder names the environment's variable that makes this program the one that holds llama.cpp.
const holder = "GPUMEMTRACK_TEST_MODEL"

func TestMain(m *testing.M) {
	if path := os.Getenv(holder); path != "" {
		if err := hold(os.Getenv("GPUMEMTRACK_LLAMACPP"), path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if request := os.Getenv(measurer); request != "" {
		if err := measure(os.Getenv("GPUMEMTRACK_LLAMACPP"), request); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// hold loads two models, with two contexts and one, and frees half of it. After each step it prints its ledger
// and waits for a line.
func hold(folder, path string) error {
	if err := llama.Load(folder); err != nil {
		return err
	}
	llama.LogSet(llama.LogSilent())
	llama.Init()
	dev, err := sim.New(sim.Config{})
	if err != nil {
		return err
	}
	tr, err := tracker.New(tracker.Config{Device: dev, Report: os.Stderr})
	if err != nil {
		return err
	}
	lib, err := memtrack.Open(filepath.Join(folder, "libllama.so"), tr)
	if err != nil {
		return err
	}
	in := bufio.NewScanner(os.Stdin)
	step := func() error {
		defer in.Scan()
		return json.NewEncoder(os.Stdout).Encode(held{byKind(tr.Snapshot()), sites(tr.Snapshot())})
	}

	var models [2]llama.Model
	var contexts [3]llama.Context
	for i := range models {
		if models[i], err = loadModel(lib, path, fmt.Sprint("model ", i)); err != nil {
			return err
		}
	}
	if err := step(); err != nil {
		return err
	}
	for i, model := range []llama.Model{models[0], models[0], models[1]} {
		if contexts[i], err = newContext(lib, model, uint32(64<<i)); err != nil {
			return err
		}
	}
	if err := lib.AddContext(uintptr(contexts[0]), "twice"); !errors.Is(err, tracker.ErrDuplicatePtr) {
		return fmt.Errorf("added twice: %w", err)
	}
	if err := step(); err != nil {
		return err
	}
	for _, c := range contexts[1:] {
		if err := errors.Join(lib.Remove(uintptr(c)), llama.Free(c)); err != nil {
			return err
		}
	}
	if err := errors.Join(lib.Remove(uintptr(models[1])), llama.ModelFree(models[1])); err != nil {
		return err
	}
	if err := lib.Remove(uintptr(models[1])); !errors.Is(err, alloc.ErrUnknownPtr) {
		return fmt.Errorf("removed twice: %w", err)
	}
	return step()
}

//go:noinline
func loadModel(lib *memtrack.Library, path, name string) (llama.Model, error) {
	params := llama.ModelDefaultParams()
	params.LoadMode = llama.LoadModeNone // what is mapped from a file is nobody's allocation
	model, err := llama.ModelLoadFromFile(path, params)
	if err != nil {
		return 0, err
	}
	return model, lib.AddModel(uintptr(model), name)
}

//go:noinline
func newContext(lib *memtrack.Library, model llama.Model, tokens uint32) (llama.Context, error) {
	params := llama.ContextDefaultParams()
	params.NCtx = tokens
	ctx, err := llama.InitFromModel(model, params)
	if err != nil {
		return 0, err
	}
	return ctx, lib.AddContext(uintptr(ctx), fmt.Sprint("context of ", tokens))
}

// held is what the program says that it holds.
type held struct {
	Bytes map[string]alloc.Bytes
	Sites map[string]string
}

// byKind sums live memory.
func byKind(s *snapshot.Snapshot) map[string]alloc.Bytes {
	sums := make(map[string]alloc.Bytes)
	for a := range s.Allocations() {
		sums[string(a.Kind)] += a.Requested
	}
	return sums
}

// sites returns the functions that added what is live, by kind.
func sites(s *snapshot.Snapshot) map[string]string {
	all := make(map[string]string)
	for a := range s.Allocations() {
		all[string(a.Kind)] = a.CallSite.Function
	}
	return all
}

// libraries returns a folder that has the files of llama.cpp's libraries under the names that yzma opens.
func libraries(t *testing.T) string {
	from := os.Getenv("GPUMEMTRACK_LLAMACPP")
	if from == "" {
		t.Skip("GPUMEMTRACK_LLAMACPP names no folder with llama.cpp's libraries")
	}
	folder := t.TempDir()
	files, err := filepath.Glob(filepath.Join(from, "*.so"))
	require.NoError(t, err)
	for _, file := range files {
		name := filepath.Base(file)
		require.NoError(t, os.Symlink(file, filepath.Join(folder, name)))
		if short, _, versioned := strings.Cut(name, ".v"); versioned {
			require.NoError(t, os.Symlink(file, filepath.Join(folder, short+".so")))
		}
	}
	return folder
}

// TestHeldToAttach holds models and contexts through yzma in a process that attach watches: both ledgers have the same
// bytes for each purpose, after each step.
func TestHeldToAttach(t *testing.T) {
	folder := libraries(t)
	w, err := attach.New(attach.Config{Functions: []string{"ggml=" + filepath.Join(folder, "libggml-base.so")}})
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSYS) {
		t.Skipf("BPF and uprobes are refused here: %v", err)
	}
	require.NoError(t, err)
	defer func() { assert.NoError(t, w.Close()) }()

	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), holder+"="+writeModel(t), "GPUMEMTRACK_LLAMACPP="+folder)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, w.Start(cmd))
	defer func() { in.Close(); assert.NoError(t, cmd.Wait()) }()
	steps := json.NewDecoder(out)
	for _, kinds := range [][]string{{"Weights"}, {"Weights", "KV", "Compute"}, {"Weights", "KV", "Compute"}} {
		var got held
		require.NoError(t, steps.Decode(&got))
		w.Sync()
		require.Len(t, w.Sources(), 1)
		seen := byKind(w.Sources()[0].Snapshot())
		assert.Len(t, got.Bytes, len(kinds))
		for _, kind := range kinds {
			assert.Positive(t, got.Bytes[kind], kind)
			assert.Equal(t, seen[kind], got.Bytes[kind], kind)
		}
		assert.Equal(t, "github.com/gpumemtrack/gpumemtrack/contrib/llama_test.loadModel", got.Sites["Weights"])
		_, err := fmt.Fprintln(in)
		require.NoError(t, err)
		t.Log(got, seen)
	}
	assert.Empty(t, w.Warnings())
}

// TestWhatIsNoLibrary names what is wrong with a path.
func TestWhatIsNoLibrary(t *testing.T) {
	_, err := memtrack.Open("/no/such/libllama.so")
	assert.ErrorContains(t, err, "/no/such/libllama.so")
	_, err = memtrack.Open("libc.so.6")
	assert.ErrorContains(t, err, "libc.so.6 is not llama.cpp's library")
}
