package attach

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/ledger"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/unwind"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// script applies events that no probe saw, of a process that there is not.
type script struct {
	t    testing.TB
	w    *Watcher
	tid  uint32
	time uint64
}

const nobodysPID = 1 << 30

// noEvents is an event source without events, of processes that have ended.
type noEvents struct{ event.Source }

func (noEvents) CodeGeneration(int) (generation, since uint32, ok bool) { return 0, 0, false }
func (noEvents) RemoveUnwindRules(int)                                  {}
func (noEvents) LoadUnwindRule(int, uint32, uint64, unwind.CompactRule) {}
func (noEvents) SetPythonLayout(int, python.Layout) error               { return nil }
func (noEvents) ClearPythonLayout(int)                                  {}
func (noEvents) Lost() (count, since uint64)                            { return 0, 0 }

func newScript(t testing.TB) *script {
	w := assemble(Config{maxEvents: 1 << 10, maxStacks: 1 << 10}, event.Watched(nil), noEvents{})
	w.clock = 0
	return &script{t: t, w: w, tid: 1}
}

// TestContainerOfExitedProcess is that of its parent, if the kernel says that it was in the same control group.
func TestContainerOfExitedProcess(t *testing.T) {
	const parent, group = 1, 7
	for of, want := range map[uint64]string{group: "docker 0123456789ab", group + 1: "", 0: ""} {
		s := newScript(t)
		s.w.apply(&event.Event{PID: parent, Phase: event.Execed, Args: [6]uint64{2: group}, Start: &event.StartRecord{Origin: snapshot.Origin{PID: parent, Host: "vm", Container: "docker 0123456789ab"}}})
		s.w.apply(&event.Event{PID: parent, Phase: event.Forked, Args: [6]uint64{nobodysPID, 1, group}})
		s.w.apply(&event.Event{PID: nobodysPID, Phase: event.Execed, Args: [6]uint64{2, 2, of}})
		s.give("cuMemAlloc_v2", 0x100, 0, 10)
		assert.Equal(t, want, s.w.Sources()[0].Origin().Container, of)
	}
}

// call applies one phase of a call of a function.
func (s *script) call(p event.Phase, symbol string, result int32, out uint64, args ...uint64) {
	s.t.Helper()
	i := slices.IndexFunc(s.w.functions, func(f event.Function) bool { return slices.Contains(f.Symbols, symbol) })
	require.GreaterOrEqual(s.t, i, 0, symbol)
	s.time += 1000
	e := event.Event{Time: s.time, PID: nobodysPID, TID: s.tid, Function: uint32(i), Phase: p, Result: result, Returned: uint64(result), Out: out}
	copy(e.Args[:], args)
	if s.w.functions[i].Effect.RecordsStack() {
		e.Stack[0], e.Depth = 0x1000+args[len(args)-1]%4, 1
	}
	if s.w.functions[i].Effect.UsesDescriptor() {
		copy(e.Desc[:], args[1:])
	}
	s.w.apply(&e)
}

// give is a call that returns something and succeeds.
func (s *script) give(symbol string, out uint64, args ...uint64) {
	s.t.Helper()
	s.call(event.AtReturn, symbol, 0, out, append([]uint64{0xdead}, args...)...)
}

// take is the beginning of a call that frees something.
func (s *script) take(symbol string, args ...uint64) {
	s.t.Helper()
	s.call(event.AtEntry, symbol, 0, 0, args...)
}

// live is all that is live, and checks that the ledgers add up.
func (s *script) live() map[alloc.Ptr]alloc.Bytes {
	s.t.Helper()
	all := make(map[alloc.Ptr]alloc.Bytes)
	for _, source := range s.w.Sources() {
		adds(s.t, source.Snapshot())
		maps.Copy(all, source.addresses())
	}
	return all
}

// addresses returns the sizes of live buffers by address; that of physical memory is its handle.
func (s *Source) addresses() live {
	all := make(live)
	for a := range s.Snapshot().Allocations() {
		all[a.Ptr] = a.Requested
	}
	return all
}

// hasEnded reports whether the process has ended.
func (s *Source) hasEnded() bool {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return !s.process.end.IsZero()
}

type live = map[alloc.Ptr]alloc.Bytes

// adds checks that live bytes are the sum over the buffers, the sites and the groups.
func adds(t testing.TB, s *snapshot.Snapshot) {
	t.Helper()
	var buffers, sites, peak, total, groups mem.Tally
	for a := range s.Allocations() {
		buffers = buffers.Add(mem.Tally{Count: 1, Bytes: a.Requested})
	}
	for site := range s.CallSites() {
		sites, peak = sites.Add(site.Live), peak.Add(site.Peak)
		if !site.Memory.OnHost() {
			total = total.Add(site.Total)
		}
	}
	for _, g := range s.Sub(nil) {
		groups = groups.Add(g.Tally)
	}
	live := s.Live.Add(s.Host())
	require.Equal(t, live, buffers)
	require.Equal(t, live, sites)
	require.Equal(t, live, groups)
	require.Equal(t, s.Peak, peak)
	require.Equal(t, s.Total, total)
}

func TestEveryFunction(t *testing.T) {
	s := newScript(t)
	s.give("cuMemAlloc_v2", 0x100, 10)
	s.call(event.AtReturn, "cuMemAllocPitch_v2", 0, 0x200, 0, 0, 100, 3) // no pitch was read: the width counts
	s.give("cuMemAllocManaged", 0x300, 30)
	s.give("cuMemAllocAsync", 0x400, 40, 0xabc)
	s.give("cuMemAllocFromPoolAsync_ptsz", 0x500, 50, 1, 0xdef)
	s.give("cuMemHostAlloc", 0x600, 60)
	s.call(event.AtReturn, "cuMemHostRegister_v2", 0, 0, 0x700, 70)
	s.give("cuArrayCreate_v2", 0x800, 8, 4, 0x20|2<<32)      // 8 x 4 of two floats
	s.give("cuArray3DCreate_v2", 0x900, 8, 0, 2, 0x01|1<<32) // 8 x 1 x 2 bytes
	s.give("cuMemAllocAsync_ptsz", 0xa00, 90, 0)
	s.give("cuMemPoolImportPointer", 0xb00, 1, 0xabc)
	s.give("cuExternalMemoryGetMappedMipmappedArray", 0xc00, 1, 0xabc)
	s.give("cuExternalMemoryGetMappedBuffer", 0xd00, 1, 0xabc)
	assert.Equal(t, live{
		0x100: 10, 0x200: 300, 0x300: 30, 0x400: 40, 0x500: 50, 0x600: 60, 0x700: 70, 0x800: 256, 0x900: 16, 0xa00: 90,
		0xb00: 0, 0xc00: 0, 0xd00: 0, // the memory is another's
	}, s.live())

	sources := s.w.Sources()
	require.Len(t, sources, 2)
	name, _ := sources[1].Device()
	assert.Equal(t, "Pinned host memory", name)
	host := sources[1].Snapshot()
	assert.Equal(t, mem.Tally{Count: 2, Bytes: 130}, host.Memory[alloc.PinnedMemory])
	assert.EqualValues(t, 130, host.HostReserved)
	assert.Zero(t, host.Live, "nothing of the device's")
	assert.Zero(t, host.Total)
	streams := map[alloc.Ptr]alloc.Stream{}
	memories := map[alloc.Ptr]alloc.Memory{}
	for a := range sources[0].Snapshot().Allocations() {
		streams[a.Ptr], memories[a.Ptr] = a.Stream, a.Memory
		assert.Empty(t, a.Kind, "only the program knows what it is for")
	}
	assert.Equal(t, map[alloc.Ptr]alloc.Memory{
		0x100: alloc.DeviceMemory, 0x200: alloc.DeviceMemory, 0x300: alloc.ManagedMemory, 0x400: alloc.PoolMemory, 0x500: alloc.PoolMemory,
		0x800: alloc.ArrayMemory, 0x900: alloc.ArrayMemory, 0xa00: alloc.PoolMemory,
		0xb00: alloc.ImportedMemory, 0xc00: alloc.ImportedMemory, 0xd00: alloc.ImportedMemory,
	}, memories)
	assert.EqualValues(t, 0xabc, streams[0x400])
	assert.EqualValues(t, 0xdef, streams[0x500])
	assert.EqualValues(t, 2, streams[0xa00], "the thread's own default stream")
	s.take("cuMemFreeAsync", 0xb00)
	s.take("cuMipmappedArrayDestroy", 0xc00)
	s.take("cuMemFree_v2", 0xd00)
	assert.Len(t, s.live(), 10)

	for _, free := range []string{"cuMemFree_v2 256", "cuMemFreeAsync 1024", "cuMemFreeAsync_ptsz 1280", "cuMemFreeAsync_ptsz 2560", "cuMemFreeHost 1536", "cuMemHostUnregister 1792", "cuArrayDestroy 2048", "cuMemFree_v2 0"} {
		var symbol string
		var at uint64
		fmt.Sscan(free, &symbol, &at)
		s.take(symbol, at)
	}
	assert.Equal(t, live{0x200: 300, 0x300: 30, 0x900: 16}, s.live())
	assert.Empty(t, s.w.Warnings())
}

func TestMipmappedAndImported(t *testing.T) {
	s := newScript(t)
	mipmapped := func(at, width, height, depth, format, flags uint64, levels uint64) {
		s.time++
		i := slices.IndexFunc(s.w.functions, func(f event.Function) bool { return f.Effect == event.AllocatesMipmapped })
		s.w.apply(&event.Event{
			Time: s.time, PID: nobodysPID, TID: 1, Function: uint32(i), Phase: event.AtReturn, Out: at,
			Args: [6]uint64{0, 0, levels}, Desc: [5]uint64{width, height, depth, format, flags},
		})
	}
	mipmapped(0x100, 8, 4, 0, 0x01|1<<32, 0, 4)   // 32 + 8 + 2 + 1
	mipmapped(0x200, 4, 4, 6, 0x20|4<<32, 4|1, 2) // (16 + 4) x 6 faces x 16 bytes
	assert.Equal(t, live{0x100: 43, 0x200: 1920}, s.live())
	assert.EqualValues(t, uint64(math.MaxUint64), ledger.MipmappedSize([5]uint64{1 << 40, 1 << 40, 0, 0x20 | 1<<32, 0}, 1))
	for _, at := range []uint64{0x100, 0x200} {
		s.take("cuMipmappedArrayDestroy", at)
	}
	s.give("cuIpcOpenMemHandle_v2", 0x400, 1)
	s.give("cuMemImportFromShareableHandle", 0x500, 7, 1)
	s.give("cuExternalMemoryGetMappedBuffer", 0x600, 7, 1)
	assert.Equal(t, live{0x400: 0, 0x500: 0, 0x600: 0}, s.live())
	s.take("cuMemMap", 0x7000, 64, 0, 0x500)
	s.take("cuMemRelease", 0x500)
	assert.Len(t, s.live(), 3, "it is mapped")
	s.take("cuMemUnmap", 0x7000, 64)
	s.take("cuIpcCloseMemHandle", 0x400)
	s.take("cuMemFree_v2", 0x600)
	assert.Empty(t, s.live())
	assert.Empty(t, s.w.Warnings())
}

// TestNoFunctionIsForgotten of those that allocate and free, with the variants for streams of
// each thread.
func TestNoFunctionIsForgotten(t *testing.T) {
	var has []string
	for _, f := range event.DriverFunctions {
		has = append(has, f.Symbols...)
	}
	for _, name := range []string{
		"cuMemAlloc_v2", "cuMemAllocPitch_v2", "cuMemAllocManaged", "cuMemAllocAsync", "cuMemAllocAsync_ptsz",
		"cuMemAllocFromPoolAsync", "cuMemAllocFromPoolAsync_ptsz", "cuMemFree_v2", "cuMemFreeAsync", "cuMemFreeAsync_ptsz",
		"cuMemHostAlloc", "cuMemAllocHost_v2", "cuMemFreeHost", "cuMemHostRegister", "cuMemHostRegister_v2", "cuMemHostUnregister",
		"cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuArrayCreate_v2", "cuArray3DCreate_v2", "cuArrayDestroy",
		"cuMipmappedArrayCreate", "cuMipmappedArrayDestroy", "cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2", "cuIpcCloseMemHandle",
		"cuMemPoolImportPointer", "cuExternalMemoryGetMappedBuffer", "cuExternalMemoryGetMappedMipmappedArray",
		"cuGreenCtxCreate", "cuGreenCtxDestroy", "cuCtxFromGreenCtx",
		"cuCtxDestroy", "cuCtxDestroy_v2", "cuDevicePrimaryCtxReset", "cuDevicePrimaryCtxReset_v2", "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease_v2",
	} {
		assert.Contains(t, has, name)
	}
	assert.Len(t, slices.Compact(slices.Sorted(slices.Values(has))), len(has), "none stands there twice")
}

// TestGreenContexts retain the primary context of their device, in which their memory is. One that is not destroyed because the
// call fails is there as before.
func TestGreenContexts(t *testing.T) {
	s := newScript(t)
	s.give("cuGreenCtxCreate", 0x9, 0xdead, 1, 1)
	s.give("cuCtxFromGreenCtx", 0x99, 0x9)
	s.take("cuCtxSetCurrent", 0x99)
	s.give("cuMemAlloc_v2", 0x100, 10)
	_, device := s.w.Sources()[0].Device()
	assert.Equal(t, 1, device)
	s.give("cuDevicePrimaryCtxRetain", 0x8, 1)
	s.take("cuGreenCtxDestroy", 0x9)
	assert.Equal(t, live{0x100: 10}, s.live(), "the primary context is still retained")
	s.call(event.AtReturn, "cuGreenCtxDestroy", 1, 0, 0x9)
	s.take("cuDevicePrimaryCtxRelease_v2", 1)
	assert.Equal(t, live{0x100: 10}, s.live(), "the green context retains it")
	s.take("cuGreenCtxDestroy", 0x9)
	assert.Empty(t, s.live())
	s.call(event.AtReturn, "cuGreenCtxDestroy", 1, 0, 0x9)
	assert.Equal(t, live{0x100: 10}, s.live())
	assert.Empty(t, s.w.Warnings())
	s.give("cuCtxFromGreenCtx", 0x77, 0x7)
	assert.Len(t, s.w.Warnings(), 1, "it is unknown")
}

func TestFreesThatFail(t *testing.T) {
	s := newScript(t)
	s.give("cuMemAlloc_v2", 0x100, 10)
	s.take("cuMemFree_v2", 0x100)
	assert.Empty(t, s.live())
	s.call(event.AtReturn, "cuMemFree_v2", 700, 0, 0x100)
	assert.Equal(t, live{0x100: 10}, s.live())
	s.take("cuMemFree_v2", 0x999) // unknown, and refused by the driver
	s.call(event.AtReturn, "cuMemFree_v2", 1, 0, 0x999)
	assert.Zero(t, s.w.unknownFrees())
	s.take("cuMemFree_v2", 0x999) // unknown, but there
	assert.EqualValues(t, 1, s.w.unknownFrees())
	assert.Len(t, s.w.Warnings(), 1)

	var actions []mem.Action
	for e := range s.w.Sources()[0].Dump().Events() {
		actions = append(actions, e.Action)
	}
	assert.Equal(t, []mem.Action{mem.Allocated, mem.Freed, mem.FreeFailed}, actions)
}

// TestAddressesComeBack: another thread is given the address while the free has not returned.
func TestAddressesComeBack(t *testing.T) {
	s := newScript(t)
	s.give("cuMemAlloc_v2", 0x100, 10)
	s.take("cuMemFree_v2", 0x100)
	s.tid = 2
	s.give("cuMemAlloc_v2", 0x100, 20)
	assert.Equal(t, live{0x100: 20}, s.live())
	assert.Empty(t, s.w.Warnings())
	s.give("cuMemAlloc_v2", 0x100, 30) // a free was missed
	assert.Equal(t, live{0x100: 30}, s.live())
	assert.Len(t, s.w.Warnings(), 1)
}

func TestRefusals(t *testing.T) {
	s := newScript(t)
	s.call(event.AtReturn, "cuMemAlloc_v2", 2, 0, 0xdead, 1<<40)
	s.call(event.AtReturn, "cuMemAlloc_v2", 1, 0, 0xdead, 0)
	assert.Empty(t, s.live())
	events := slices.Collect(s.w.Sources()[0].Dump().Events())
	require.Len(t, events, 1)
	assert.Equal(t, mem.OutOfMemory, events[0].Action)
	assert.Equal(t, alloc.Bytes(1<<40), events[0].Requested)
}

// TestPhysicalMemory lives as long as it is held or mapped.
func TestPhysicalMemory(t *testing.T) {
	s := newScript(t)
	s.give("cuMemCreate", 7, 100)
	s.call(event.AtReturn, "cuMemMap", 0, 0, 0x10000, 100, 0, 7)
	s.take("cuMemRelease", 7)
	assert.Equal(t, live{7: 100}, s.live(), "it is mapped")
	s.take("cuMemUnmap", 0x10000, 100)
	s.call(event.AtReturn, "cuMemUnmap", 1, 0, 0x10000, 100)
	assert.Equal(t, live{7: 100}, s.live(), "that failed")
	s.take("cuMemUnmap", 0x10000, 100)
	assert.Empty(t, s.live())

	s.give("cuMemCreate", 8, 200)
	s.give("cuMemRetainAllocationHandle", 8)
	s.take("cuMemRelease", 8)
	assert.Equal(t, live{8: 200}, s.live(), "it is held twice")
	s.take("cuMemRelease", 8)
	assert.Empty(t, s.live())
	s.call(event.AtReturn, "cuMemRelease", 1, 0, 8)
	assert.Equal(t, live{8: 200}, s.live(), "that failed")

	s.call(event.AtReturn, "cuMemMap", 0, 0, 0x20000, 200, 0, 8)
	s.take("cuMemRelease", 8)
	s.give("cuMemCreate", 8, 300)
	s.take("cuMemUnmap", 0x20000, 200)
	assert.Equal(t, live{8: 300}, s.live(), "that was the memory before it")
	s.take("cuMemRelease", 8)
	assert.Empty(t, s.live())
}

func TestContexts(t *testing.T) {
	s := newScript(t)
	s.give("cuCtxCreate_v2", 0xc1, 0, 1) // device 1
	s.give("cuMemAlloc_v2", 0x100, 10)
	s.give("cuDevicePrimaryCtxRetain", 0xc0, 0)
	s.give("cuDevicePrimaryCtxRetain", 0xc0, 0)
	s.take("cuCtxPushCurrent_v2", 0xc0)
	s.give("cuMemAlloc_v2", 0x200, 20)
	s.take("cuCtxPopCurrent_v2", 0)
	s.give("cuMemAlloc_v2", 0x300, 30)
	assert.Equal(t, live{0x100: 10, 0x200: 20, 0x300: 30}, s.live())
	ordinals := map[int]alloc.Bytes{}
	for _, source := range s.w.Sources() {
		_, ordinal := source.Device()
		ordinals[ordinal] = source.LightSnapshot().Live.Bytes
	}
	assert.Equal(t, map[int]alloc.Bytes{0: 20, 1: 40}, ordinals)

	s.take("cuDevicePrimaryCtxRelease_v2", 0)
	assert.Contains(t, s.live(), alloc.Ptr(0x200), "another holds it")
	s.take("cuDevicePrimaryCtxRelease_v2", 0)
	assert.Equal(t, live{0x100: 10, 0x300: 30}, s.live())
	s.take("cuCtxDestroy_v2", 0xc1)
	assert.Empty(t, s.live())
	s.call(event.AtReturn, "cuCtxDestroy_v2", 709, 0, 0xc1)
	assert.Equal(t, live{0x100: 10, 0x300: 30}, s.live(), "that failed")
	s.give("cuMemAlloc_v2", 0x400, 40)
	_, ordinal := s.w.Sources()[0].Device()
	assert.Equal(t, 1, ordinal, "the context is current again")
	assert.Empty(t, s.w.Warnings())
	s.take("cuDevicePrimaryCtxReset_v2", 5)
	assert.Len(t, s.w.Warnings(), 1)
}

func TestExecAndExit(t *testing.T) {
	s := newScript(t)
	s.give("cuMemAlloc_v2", 0x100, 10)
	s.w.apply(&event.Event{PID: nobodysPID, TID: 1, Phase: event.Execed, Time: s.time + 1})
	assert.Empty(t, s.live(), "another program is there")
	s.w.apply(&event.Event{PID: nobodysPID, TID: 1, Phase: event.Execed, Time: s.time + 2, Start: &event.StartRecord{Origin: snapshot.Origin{PID: nobodysPID, Program: "second"}}})
	assert.Equal(t, "second", s.w.Sources()[0].Origin().Program)
	s.w.apply(&event.Event{PID: nobodysPID, TID: 1, Phase: event.Execed, Time: s.time + 3, Args: [6]uint64{3: binary.NativeEndian.Uint64([]byte("the thir")), 4: binary.NativeEndian.Uint64([]byte("d\x00------"))}})
	assert.Equal(t, "the third", s.w.Sources()[0].Origin().Program, "the kernel's name for it")
	s.w.apply(&event.Event{PID: nobodysPID, TID: 1, Phase: event.Forked, Args: [6]uint64{nobodysPID + 1}})
	assert.Equal(t, "the third", newProcess(s.w, nobodysPID+1).origin.Program)
	s.w.apply(&event.Event{PID: nobodysPID, TID: 1, Phase: event.Execed, Time: s.time + 3})
	assert.Empty(t, s.w.Sources()[0].Origin().Program, "nobody knows the fourth: it is not the third")
	s.give("cuMemAlloc_v2", 0x200, 20)
	s.w.apply(&event.Event{PID: nobodysPID, TID: 1, Phase: event.Exited, Args: [6]uint64{1}, Time: s.time + 1})
	assert.Equal(t, live{0x200: 20}, s.live(), "as it was at the end")
	s.give("cuMemAlloc_v2", 0x200, 30)
	assert.Len(t, s.w.Sources(), 2, "another process with the same number")
}

// addTo adds a difference to the sums of several.
func addTo(sums *snapshot.DeltaBuilder, d snapshot.Delta) {
	for _, c := range d {
		for _, at := range c.CallSites {
			sums.Add(c.Group, at.Frame, at.Tally)
		}
	}
}

// TestRandomCalls holds the ledger to a plain map, and the marks to the ledger.
func TestRandomCalls(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		s, want, sums := newScript(t), live{}, snapshot.DeltaBuilder{}
		next := uint64(0x1000)
		for range 2000 {
			s.tid = r.Uint32N(4)
			switch n := r.IntN(10); {
			case n < 5:
				size := 1 + r.Uint64N(1<<r.UintN(20))
				s.give("cuMemAlloc_v2", next, size)
				want[alloc.Ptr(next)] = alloc.Bytes(size)
				next += 0x100
			case n < 9 && len(want) > 0:
				at := slices.Sorted(maps.Keys(want))[r.IntN(len(want))]
				s.take("cuMemFree_v2", uint64(at))
				if n == 8 {
					s.call(event.AtReturn, "cuMemFree_v2", 999, 0, uint64(at))
					break
				}
				delete(want, at)
			case n == 9 && r.IntN(20) == 0:
				for _, source := range s.w.Sources() {
					addTo(&sums, source.Track().Delta)
				}
			}
		}
		require.Equal(t, want, s.live())
		source := s.w.Sources()[0]
		addTo(&sums, source.Track().Delta)
		sum := sums.Delta()
		require.Equal(t, source.Snapshot().Live, sum.Sum())
		require.Empty(t, source.Track().Delta)
		require.Equal(t, source.Snapshot().Sub(nil).String(), sum.String())

		var text bytes.Buffer
		require.NoError(t, s.w.Dump().WriteJSON(&text))
		read, err := snapshot.ReadDump(&text)
		require.NoError(t, err)
		require.Equal(t, source.Snapshot().Live, read.Snapshot.Live)
		require.EqualValues(t, tables.OfHistory(&source.Dump().History).First, tables.OfHistory(&read.History).First)
	}
}

func TestSuspects(t *testing.T) {
	s := newScript(t)
	for i := range uint64(2000) {
		s.time += 20e6
		s.give("cuMemAlloc_v2", 0x100, 4)
		s.take("cuMemFree_v2", 0x100)
		if i%100 == 0 {
			s.give("cuMemAlloc_v2", 0x1000+i, 4)
		}
	}
	now := s.w.start.Add(time.Duration(s.time))
	s.w.Sources()[0].process.end = now
	assert.Len(t, leaks.Suspects(s.w.Sources()[0].Snapshot()), 1)
	assert.Equal(t, "[1073741824-gpu: 20 buffers, 80 B live, peak 84 B]", fmt.Sprint(s.w.Sources()))
	assert.Equal(t, "watcher, sources: 1", fmt.Sprint(s.w))
}

// lostEvents returns what was lost until the last Sync.
func (w *Watcher) lostEvents() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.accuracy.LostEvents
}

// unknownFrees returns how many frees there were of addresses that were not allocated while
// watching.
func (w *Watcher) unknownFrees() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.accuracy.UnknownFrees
}
