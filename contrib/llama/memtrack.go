//go:build !windows

package memtrack

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/ebitengine/purego"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// The kinds of llama.cpp's memory, as in gpumemtrack attach --functions ggml.
const (
	weights tracker.Kind = "Weights"
	kv      tracker.Kind = "KV"
	compute tracker.Kind = "Compute"
)

// Library is llama.cpp's library, with the models and contexts that were entered in the ledger.
type Library struct {
	trackers  []*tracker.MemTracker
	functions functions

	mu         sync.Mutex
	registered map[uintptr][]entry // by handle
}

// entry is memory in a ledger.
type entry struct {
	tr  *tracker.MemTracker
	ptr alloc.Ptr
}

// Open finds llama.cpp's library at the path from which the program loaded it. The memory of device n (CUDA1, Vulkan1) is entered
// in the tracker at index n. The memory of the host, and of devices for which there is no tracker, is entered in the first. Without
// trackers all is entered in tracker.Default. The error is the loader's, if there is no such library, or it is not llama.cpp's.
func Open(path string, trackers ...*tracker.MemTracker) (*Library, error) {
	runtime.LockOSThread() // dlerror reports a failure to the thread of the dlopen only
	handle, err := purego.Dlopen(path, purego.RTLD_NOW)
	runtime.UnlockOSThread()
	if err != nil {
		return nil, fmt.Errorf("memtrack: %w", err)
	}
	if len(trackers) == 0 {
		trackers = []*tracker.MemTracker{tracker.Default()}
	}
	l := &Library{trackers: trackers, registered: make(map[uintptr][]entry)}
	if err := l.functions.resolve(handle); err != nil {
		return nil, fmt.Errorf("memtrack: %s is not llama.cpp's library: %w", path, err)
	}
	return l, nil
}

// AddModel enters the memory of a model that was loaded (a *llama_model, yzma's llama.Model). The name is its label.
// The error is tracker.ErrDuplicatePtr if the handle is there already, alloc.ErrUnknownPtr if it is 0, and alloc.ErrClosed if
// a tracker is closed.
func (l *Library) AddModel(model uintptr, name string) error {
	return l.add("model", model, name, l.functions.ofModel)
}

// AddContext enters the memory of a context (a *llama_context, yzma's llama.Context), without its model's. The
// errors are those of AddModel.
func (l *Library) AddContext(context uintptr, name string) error {
	return l.add("context", context, name, l.functions.ofContext)
}

// Remove takes a model or a context out of the ledger. Call it before it is freed. The error is
// alloc.ErrUnknownPtr if the handle was not added, or was removed already, and that of tracker.MemTracker.Unregister after Close.
func (l *Library) Remove(handle uintptr) error {
	l.mu.Lock()
	entries, ok := l.registered[handle]
	delete(l.registered, handle)
	l.mu.Unlock()
	if !ok {
		return fmt.Errorf("memtrack: remove %#x: %w: it was not added, or is removed already", handle, alloc.ErrUnknownPtr)
	}
	return unregister(entries)
}

// String returns how many models and contexts are entered.
func (l *Library) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Sprintf("llama.cpp, models and contexts: %d", len(l.registered))
}

// add enters what a handle holds: all of it, or with an error nothing.
func (l *Library) add(what string, handle uintptr, name string, parts func(uintptr) []part) error {
	if handle == 0 {
		return fmt.Errorf("memtrack: add %s %q: %w: the handle is 0", what, name, alloc.ErrUnknownPtr)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.registered[handle]; known {
		return fmt.Errorf("memtrack: add %s %q: %w: %#x", what, name, tracker.ErrDuplicatePtr, handle)
	}
	var entries []entry
	for _, p := range parts(handle) {
		e := entry{l.tracker(p.device), address(p.bytes)}
		memory := alloc.DeviceMemory
		if p.host {
			memory = alloc.PinnedMemory
		}
		err := e.tr.Register(e.ptr, memory, alloc.Shape{int(p.bytes)}, alloc.Uint8, p.kind)
		if err != nil {
			return errors.Join(fmt.Errorf("memtrack: add %s %q: %w", what, name, err), unregister(entries))
		}
		_ = e.tr.SetLabel(e.ptr, name) // fails only if the tracker is closed meanwhile
		entries = append(entries, e)
	}
	l.registered[handle] = entries
	return nil
}

// tracker returns the tracker of a device: see Open.
func (l *Library) tracker(device int) *tracker.MemTracker {
	if device >= len(l.trackers) {
		device = 0
	}
	return l.trackers[device]
}

func unregister(entries []entry) (err error) {
	for _, e := range entries {
		_, failed := e.tr.Unregister(e.ptr)
		err = errors.Join(err, failed)
	}
	return err
}

// next is the address of the next entry. llama.cpp tells no addresses of buffers, so entries have some that no device
// has, each once, as large as the entry.
var next atomic.Uint64

const firstAddress, alignment = 1 << 53, 512

func address(bytes uint64) alloc.Ptr {
	room := (max(bytes, 1) + alignment - 1) / alignment * alignment
	return alloc.Ptr(firstAddress + next.Add(room) - room)
}
