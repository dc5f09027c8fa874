package probes

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEmulated(t *testing.T) {
	for name, test := range map[string]struct {
		code string
		want int
	}{
		"NVIDIA's cuMemAlloc_v2":       {"813d3e35930100ba1c32740cff25c6b8", 10}, // cmpl; je; jmp
		"the same, endbr64":            {"f30f1efa813d3e35930100ba1c32740c", 14},
		"another after the compare":    {"813d3e35930100ba1c320f840c000000", 0},
		"compare, cut":                 {"813d3e35930100ba1c32", 0},
		"compare with a register":      {"83fe01740cff25c6b88301", 0},
		"endbr64, push rbp":            {"f30f1efa554889e5", 4},
		"endbr64, push r12":            {"f30f1efa41545553", 4},
		"endbr64, mov":                 {"f30f1efab803000000", 0},
		"endbr64, rex.b mov":           {"f30f1efa4189fc55", 0},
		"endbr64, cut":                 {"f30f1efa", 0},
		"push":                         {"554889e5", 0},
		"mov":                          {"b803000000", 0},
		"nothing":                      {"", 0},
		"endbr32, which has no effect": {"f30f1efb55", 0},
	} {
		code, err := hex.DecodeString(test.code)
		require.NoError(t, err, name)
		assert.Equal(t, test.want, emulated(code), name)
	}
}
