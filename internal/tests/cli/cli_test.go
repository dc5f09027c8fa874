// Package cli_test runs the command gpumemtrack as its users do.
package cli_test

import (
	"fmt"
	"image/png"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// How the test binary was built, and so the program.
var race = setting("-race") == "true"

func setting(key string) string {
	info, _ := debug.ReadBuildInfo()
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// program is where gpumemtrack lies.
var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "gpumemtrack-test")
	if err != nil {
		log.Fatal(err)
	}
	program = filepath.Join(dir, "gpumemtrack")
	if err := build(program, "./cmd/gpumemtrack"); err != nil {
		log.Fatal(err)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// build builds a program of the module that is tested, as the test is built.
func build(name, pkg string) error {
	args := []string{"build", "-ldflags=-s -w", "-o", name} // without what debuggers read, which takes long to link
	if race {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, pkg)...)
	cmd.Dir = filepath.Join("..", "..", "..")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return nil
}

func TestScripts(t *testing.T) {
	tools := filepath.Dir(program)
	emulated := buildAlloc(tools)
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", tools+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
			return nil
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "emulated": // a GPU can be emulated here
				return emulated == nil, nil
			case "gpu": // there is a real one
				src, err := nvml.Open()
				if err == nil {
					src.Close()
				}
				return err == nil, nil
			}
			return false, fmt.Errorf("no condition %q", name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"emulate":  emulate,
			"waitfile": waitFile,
			"ispng":    isPNG,
		},
	})
}

// buildAlloc builds testdata/alloc.c against the emulated driver.
func buildAlloc(dir string) error {
	libs, err := gpuemu.Build()
	if err != nil {
		return err
	}
	cmd := exec.Command("gcc", "-o", filepath.Join(dir, "alloc"), filepath.Join("testdata", "alloc.c"), "-L"+libs.Dir, "-lcuda")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("alloc.c: %w: %s", err, out)
	}
	return nil
}

// emulate puts the emulated driver under what the script runs from here on:
// emulate [NAME=VALUE...] with the GPUEMU_ variables' names.
func emulate(ts *testscript.TestScript, neg bool, args []string) {
	env, err := gpuemu.Options{State: ts.MkAbs("gpuemu.state")}.Environ()
	ts.Check(err)
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		if name == "LD_LIBRARY_PATH" || strings.HasPrefix(name, "GPUEMU_") {
			ts.Setenv(name, value)
		}
	}
	for _, arg := range args {
		name, value, _ := strings.Cut(arg, "=")
		ts.Setenv("GPUEMU_"+name, value)
	}
}

// patience is no measure of time: who waits so long fails.
const patience = time.Minute

// waitFile waits until a file has text that matches: waitfile GLOB PATTERN.
func waitFile(ts *testscript.TestScript, neg bool, args []string) {
	pattern := regexp.MustCompile(args[1])
	if err := waitFor(func() bool { return pattern.MatchString(readGlob(ts.MkAbs(args[0]))) }); err != nil {
		ts.Fatalf("%s never had %s; it has: %s", args[0], args[1], readGlob(ts.MkAbs(args[0])))
	}
}

func waitFor(ok func() bool) error {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return nil
		}
	}
	return fmt.Errorf("not in %v", patience)
}

func readGlob(pattern string) string {
	names, _ := filepath.Glob(pattern)
	var all strings.Builder
	for _, name := range names {
		text, _ := os.ReadFile(name)
		all.Write(text)
	}
	return all.String()
}

func isPNG(ts *testscript.TestScript, neg bool, args []string) {
	picture, err := png.Decode(strings.NewReader(ts.ReadFile(args[0])))
	ts.Check(err)
	size := fmt.Sprintf("%dx%d", picture.Bounds().Dx(), picture.Bounds().Dy())
	if size != args[1] {
		ts.Fatalf("%s is %s, not %s", args[0], size, args[1])
	}
}

// emulated is gpumemtrack as a process on an emulated machine.
func emulated(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := gpuemu.Command(t, gpuemu.Options{Context: 256 << 20}, program, args...)
	cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES=0")
	return cmd
}
