//go:build !windows

package memtrack

import (
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// part is the memory of a model or a context for one purpose, in one place.
type part struct {
	kind   tracker.Kind
	device int // its number in the backend
	host   bool
	bytes  uint64
}

// functions are the functions of llama.cpp that this package calls.
type functions struct {
	modelSize, stateSize func(handle uintptr) uint64

	// The breakdowns are nil where they are not exported, or cannot be read.
	modelBreakdown, contextBreakdown func(handle uintptr) tree
	onHost                           func(bufferType uintptr) bool
	typeName                         func(bufferType uintptr) string
	free                             func(unsafe.Pointer)
}

// resolve looks the functions up in llama.cpp's library, and in the libraries that it is linked with.
func (c *functions) resolve(library uintptr) error {
	for name, into := range map[string]any{
		"llama_model_size": &c.modelSize, "llama_state_get_size": &c.stateSize,
		"ggml_backend_buft_is_host": &c.onHost, "ggml_backend_buft_name": &c.typeName,
	} {
		address, err := purego.Dlsym(library, name)
		if err != nil {
			return err
		}
		purego.RegisterFunc(into, address)
	}
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		return nil
	}
	free, err := purego.Dlsym(library, "_ZdlPv") // operator delete(void *)
	if err != nil {
		return nil //nolint:nilerr // the library was built with another standard library: it has no breakdown
	}
	purego.RegisterFunc(&c.free, free)
	for name, into := range map[string]*func(uintptr) tree{
		"_ZNK11llama_model16memory_breakdownEv":           &c.modelBreakdown,
		"_Z26llama_get_memory_breakdownPK13llama_context": &c.contextBreakdown,
	} {
		if address, err := purego.Dlsym(library, name); err == nil {
			purego.RegisterFunc(into, address)
		}
	}
	return nil
}

func (c *functions) ofModel(model uintptr) []part {
	if c.modelBreakdown != nil {
		if parts := c.parts(c.modelBreakdown(model), weights); len(parts) > 0 {
			return parts
		}
	}
	return []part{{kind: weights, bytes: c.modelSize(model)}}
}

func (c *functions) ofContext(context uintptr) []part {
	if c.contextBreakdown != nil {
		if parts := c.parts(c.contextBreakdown(context), "", kv, compute); len(parts) > 0 {
			return parts
		}
	}
	return []part{{kind: kv, bytes: c.stateSize(context)}}
}

// tree is a std::map of GCC's standard library, from the type of a buffer to sizes. Its nodes are the caller's to delete.
type tree struct {
	_     uintptr // the comparison, which has no data
	_     uintptr // the color of the header
	root  *node
	_, _  *node // the first and the last
	count uintptr
}

// node is a node of a tree. It has as many sizes as the map's value.
type node struct {
	_           uintptr // the color
	_           *node   // the parent
	left, right *node
	bufferType  uintptr
	sizes       [3]uintptr
}

// parts reads a breakdown and deletes it. kinds has a kind for each size; a size of kind "" is left out.
func (c *functions) parts(t tree, kinds ...tracker.Kind) (parts []part) {
	if t.count == 0 { // the map is empty, or not of the layout that we know
		return nil
	}
	var walk func(*node)
	walk = func(n *node) {
		if n == nil {
			return
		}
		walk(n.left)
		for i, kind := range kinds {
			size := n.sizes[i] // which reads no more of the node than is there
			if kind != "" && size > 0 {
				parts = append(parts, part{kind, ordinal(c.typeName(n.bufferType)), c.onHost(n.bufferType), uint64(size)})
			}
		}
		walk(n.right)
		c.free(unsafe.Pointer(n))
	}
	walk(t.root)
	return parts
}

// ordinal returns the number at the end of the name of a type of buffer: 1 for CUDA1. It is 0 for CPU.
func ordinal(name string) int {
	digits := name[len(strings.TrimRight(name, "0123456789")):]
	n, _ := strconv.Atoi(digits)
	return n
}
