//go:build unix

package main

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

//go:embed testdata/mallocs.c
var mallocs []byte

// heaptrack is heaptrack beside a program in C that allocates and frees from as deep a stack. It counts what the program takes
// itself, less what it takes alone: the process that compresses the recording is not counted.
func heaptrack() (w *way, note string) {
	tool, err := exec.LookPath("heaptrack")
	if err != nil {
		return nil, "heaptrack is not installed"
	}
	dir, err := os.MkdirTemp("", "corebench")
	check(err)
	program := filepath.Join(dir, "mallocs")
	check(os.WriteFile(program+".c", mallocs, 0o600))
	if out, err := exec.Command("cc", "-O2", "-g", "-o", program, program+".c").CombinedOutput(); err != nil {
		_ = os.RemoveAll(dir)
		return nil, "heaptrack: the program to watch cannot be compiled: " + strings.TrimSpace(string(out))
	}
	run := func(n int, command ...string) float64 {
		command = append(command, program, strconv.Itoa(n))
		out, err := exec.Command(command[0], command[1:]...).Output()
		check(err)
		for line := range strings.Lines(string(out)) {
			if took, err := strconv.ParseFloat(strings.TrimSpace(line), 64); err == nil {
				return took / float64(n)
			}
		}
		panic(fmt.Sprintf("%s printed no time: %q", command[0], out))
	}
	const n = 1_000_000
	return &way{
		name: "heaptrack: a pair of malloc and free in C, as many frames", end: func() { _ = os.RemoveAll(dir) },
		value: func(int) float64 {
			return run(n, tool, "-o", filepath.Join(dir, "recording")) - run(n)
		},
	}, ""
}
