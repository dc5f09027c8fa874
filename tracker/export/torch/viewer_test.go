package torch

import (
	"bytes"
	"slices"
	"sort"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// requireViewable holds a snapshot against what PyTorch's page (MemoryViz.js)
// and its script (_memory_viz.py) need. The page goes back from the segments and
// blocks at the end, event by event; it fails on a block outside of every segment.
func requireViewable(t require.TestingT, pickle []byte) {
	requireKnownOpcodes(t, pickle)
	value, err := unpickle(bytes.NewReader(pickle))
	require.NoError(t, err)
	top := value.(*dict)
	segments := elements(t, top, "segments")
	requireTiled(t, segments)
	for device, trace := range must[*sequence](t, top, "device_traces").items {
		requireReplayable(t, int64(device), segments, trace.(*sequence))
	}
}

// must returns the value at a key, which has to be there and a T.
func must[T any](t require.TestingT, d *dict, key string) T {
	value, ok := d.get(key)
	require.True(t, ok, "no key %s", key)
	require.IsType(t, *new(T), value, "key %s", key)
	return value.(T)
}

func elements(t require.TestingT, d *dict, key string) []*dict {
	var out []*dict
	for _, e := range must[*sequence](t, d, key).items {
		out = append(out, e.(*dict))
	}
	return out
}

const exact = 1 << 53 // integers below are exact in JavaScript

func requireTiled(t require.TestingT, segments []*dict) {
	for _, s := range segments {
		at, total := must[int64](t, s, "address"), must[int64](t, s, "total_size")
		require.Less(t, at+total, int64(exact))
		require.Positive(t, total)
		for _, key := range []string{"device", "stream", "allocated_size", "active_size", "requested_size"} {
			must[int64](t, s, key)
		}
		require.Contains(t, []string{"small", "large"}, must[string](t, s, "segment_type"))
		require.Len(t, must[*sequence](t, s, "segment_pool_id").items, 2)
		must[bool](t, s, "is_expandable")
		must[*sequence](t, s, "frames")
		sum := int64(0)
		for _, b := range elements(t, s, "blocks") {
			require.Equal(t, at+sum, must[int64](t, b, "address"), "blocks must tile their segment")
			require.Contains(t, []string{"active_allocated", "active_pending_free", "inactive"}, must[string](t, b, "state"))
			require.LessOrEqual(t, must[int64](t, b, "requested_size"), must[int64](t, b, "size"))
			must[*sequence](t, b, "frames")
			sum += must[int64](t, b, "size")
		}
		require.Equal(t, total, sum, "_memory_viz.py asserts that blocks add up to their segment")
	}
}

type interval struct{ addr, size int64 }

func requireReplayable(t require.TestingT, device int64, segments []*dict, trace *sequence) {
	var open []interval
	live := make(map[int64]bool)
	for _, s := range segments {
		if must[int64](t, s, "device") != device {
			continue
		}
		open = append(open, interval{must[int64](t, s, "address"), must[int64](t, s, "total_size")})
		for _, b := range elements(t, s, "blocks") {
			if must[string](t, b, "state") != "inactive" {
				live[must[int64](t, b, "address")] = true
			}
		}
	}
	categories, unknown := 0, 0
	covered := func() {
		sort.Slice(open, func(i, j int) bool { return open[i].addr < open[j].addr })
		for addr := range live {
			require.True(t, slices.ContainsFunc(open, func(s interval) bool { return s.addr <= addr && addr < s.addr+s.size }),
				"the page fails on block %#x in no segment", addr)
		}
	}
	covered()
	for _, value := range slices.Backward(trace.items) {
		e := value.(*dict)
		must[int64](t, e, "time_us")
		must[int64](t, e, "stream")
		must[*sequence](t, e, "frames")
		size := must[int64](t, e, "size")
		if category, ok := e.get("category"); ok {
			categories++
			if category == "unknown" {
				unknown++
			}
		}
		action := must[string](t, e, "action")
		if action == "oom" {
			must[int64](t, e, "device_free")
			continue
		}
		addr := must[int64](t, e, "addr")
		require.Less(t, addr, int64(exact))
		switch action {
		case "alloc":
			delete(live, addr)
		case "free_requested":
			require.True(t, live[addr], "the page fails on a free_requested of no block")
		case "free_completed":
			live[addr] = true
		case "segment_alloc":
			i := slices.IndexFunc(open, func(s interval) bool { return s.addr == addr })
			require.GreaterOrEqual(t, i, 0, "the page takes away another segment if %#x is not there", addr)
			require.Equal(t, size, open[i].size)
			open = slices.Delete(open, i, i+1)
		case "segment_map": // of an expandable segment, which it splits
			i := slices.IndexFunc(open, func(s interval) bool { return s.addr <= addr && addr+size <= s.addr+s.size })
			require.GreaterOrEqual(t, i, 0, "the page looks for %#x in a segment", addr)
			whole := open[i]
			open = slices.Delete(open, i, i+1)
			for _, rest := range []interval{{whole.addr, addr - whole.addr}, {addr + size, whole.addr + whole.size - addr - size}} {
				if rest.size > 0 {
					open = append(open, rest)
				}
			}
		case "segment_unmap": // which joins what is beside it
			piece := interval{addr, size}
			open = slices.DeleteFunc(open, func(s interval) bool {
				beside := s.addr+s.size == piece.addr || piece.addr+piece.size == s.addr
				if beside {
					piece = interval{min(s.addr, piece.addr), s.size + piece.size}
				}
				return beside
			})
			open = append(open, piece)
		case "segment_free":
			open = append(open, interval{addr, size})
		case "snapshot":
		default:
			require.Fail(t, "the page does not know this action", action)
		}
		if action != "alloc" { // the page draws after each event, blocks may only miss a segment by one that came
			covered()
		}
	}
	if categories > 0 {
		require.Positive(t, unknown, "the page fails on categories without unknown")
	}
}

// requireKnownOpcodes walks the pickle as the page's unpickler does.
func requireKnownOpcodes(t require.TestingT, pickle []byte) {
	require.Equal(t, []byte{opProto, 4}, pickle[:2])
	long := func(i, n int) int {
		v := 0
		for k := n - 1; k >= 0; k-- {
			v = v<<8 | int(pickle[i+k])
		}
		return v
	}
	inBatch := []int{}
	for i := 2; i < len(pickle); {
		code := pickle[i]
		i++
		switch code {
		case opStop:
			require.Equal(t, len(pickle), i)
			return
		case opMark:
			inBatch = append(inBatch, 0)
		case opAppends, opSetItems:
			inBatch = inBatch[:len(inBatch)-1]
		case opNone, opNewTrue, opNewFalse, opEmptyList, opEmptyDict, opTuple2, opMemoize:
		case opBinInt1, opBinGet:
			i++
		case opBinInt2:
			i += 2
		case opBinInt, opLongBinGet:
			i += 4
		case opLong1:
			require.LessOrEqual(t, pickle[i], byte(8), "BigInt in the page")
			i += 1 + int(pickle[i])
		case opShortBinUnicode:
			i += 1 + int(pickle[i])
		case opBinUnicode:
			i += 4 + long(i, 4)
		default:
			require.Fail(t, "the page does not know this opcode", "%q at %d", code, i-1)
		}
	}
	require.Fail(t, "no STOP")
}

func TestListsAreWrittenInBatches(t *testing.T) {
	var b bytes.Buffer
	p := newPickler(&b)
	l := p.beginList()
	for i := range 2500 {
		l.next()
		p.int(int64(i))
	}
	l.end()
	require.NoError(t, p.close())
	assert.Equal(t, 3, bytes.Count(b.Bytes(), []byte{opAppends, opMark})+1, "1000, 1000, 500")
	value, err := unpickle(&b)
	require.NoError(t, err)
	assert.Len(t, value.(*sequence).items, 2500)
}

func TestIntegersRoundTrip(t *testing.T) {
	for shift := range 63 {
		for _, v := range []int64{1<<shift - 1, 1 << shift, 1<<shift + 1, -1 << shift, -1<<shift - 1} {
			var b bytes.Buffer
			p := newPickler(&b)
			p.int(v)
			require.NoError(t, p.close())
			got, err := unpickle(&b)
			require.NoError(t, err)
			require.Equal(t, v, got)
		}
	}
}
