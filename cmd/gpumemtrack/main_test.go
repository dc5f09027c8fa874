package main

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// gorgonia.org/cu ends a program from its init where no device answers: the program must not
// link it, whatever tag it is built with.
func TestLinksNoGorgonia(t *testing.T) {
	out, err := exec.Command("go", "list", "-tags", "cuda", "-deps", ".").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "github.com/gpumemtrack/gpumemtrack/alloc/cuda\n")
	require.NotContains(t, string(out), "gorgonia.org/cu")
}
