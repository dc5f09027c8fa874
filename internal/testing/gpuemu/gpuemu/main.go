// Gpuemu runs a program under the emulated driver.
//
//	gpuemu run go test ./...   each process on a machine of its own, unless GPUEMU_STATE says otherwise
//	gpuemu dir                 where the libraries lie
//
// The GPUEMU_ variables of package gpuemu describe the machine.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
)

func main() {
	code, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func run(args []string) (code int, err error) {
	if len(args) == 0 || (args[0] == "run" && len(args) == 1) {
		return 2, errors.New("usage: gpuemu dir | gpuemu run program [arguments]")
	}
	libs, err := gpuemu.Build()
	if err != nil {
		return 1, err
	}
	switch args[0] {
	case "dir":
		fmt.Println(libs.Dir)
		return 0, nil
	case "run":
		return runUnder(libs.Dir, args[1:])
	default:
		return 2, fmt.Errorf("gpuemu: unknown command %q: dir or run", args[0])
	}
}

func runUnder(libs string, args []string) (code int, err error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	path := strings.Trim(libs+":"+os.Getenv("LD_LIBRARY_PATH"), ":")
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+path)
	if os.Getenv("GPUEMU_STATE") == "" {
		dir, err := os.MkdirTemp("", "gpuemu-")
		if err != nil {
			return 1, err
		}
		defer os.RemoveAll(dir)
		cmd.Env = append(cmd.Env, "GPUEMU_STATE="+filepath.Join(dir, "%p"))
	}
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(exit.ExitCode(), 1), nil
	}
	if err != nil {
		return 1, err
	}
	return 0, nil
}
