package bfc_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/outside"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/internal/bfc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/explain"
)

// told is what the JSON of a failure says.
type told struct {
	Line      int          `json:"line"`
	Allocator string       `json:"allocator"`
	Requested *alloc.Bytes `json:"requested_bytes"`
	Words     string       `json:"requested_text"`
	Operation string       `json:"operation"`
	InUse     *mem.Tally   `json:"in_use"`
	Free      *mem.Tally   `json:"free"`
	Largest   *alloc.Bytes `json:"largest_free_bytes"`
	Regions   []alloc.Bytes
	Pool      *alloc.Bytes `json:"pool_bytes"`
	Limit     *alloc.Bytes `json:"limit_bytes"`
	Reserved  alloc.Bytes  `json:"reserved_bytes"`
	Shrunk    alloc.Bytes  `json:"shrunk_bytes"`
	Grew      bool         `json:"grew"`
	Barrier   *struct {
		Room   alloc.Bytes `json:"room_bytes"`
		InUse  mem.Tally   `json:"in_use"`
		Chunks []struct {
			Name string `json:"name"`
		} `json:"chunks"`
	} `json:"barrier"`
	Fragmented *bool    `json:"fragmented"`
	Peak       []any    `json:"peak_buffers"`
	Lacks      []string `json:"lacks"`
}

func tell(t *testing.T, f *bfc.Failure) (out told) {
	text, err := json.Marshal(f)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &out))
	return out
}

// logged is what Read returns.
type logged struct {
	Failures []*bfc.Failure
	Dump     *snapshot.Dump
	Usage    *export.Usage
}

func read(t *testing.T, path string) *logged {
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	failures, d, usage, err := bfc.Read(f)
	require.NoError(t, err, path)
	return &logged{failures, d, usage}
}

func parse(t *testing.T, text string) *logged {
	failures, d, usage, err := bfc.Read(strings.NewReader(text))
	require.NoError(t, err)
	return &logged{failures, d, usage}
}

// realLogs are logs of programs that ran out of memory, and what stands in the way of the request in those that are
// fragmented. The file says less than a whole dump where lacks is set.
var realLogs = []struct {
	file    string
	barrier alloc.Bytes // -1: not fragmented
	lacks   string
}{
	{"jax_bigger_than_pool.log", -1, "the chunks"},
	{"jax_tsl_buffer_assignment.log", -1, "the chunks"},
	{"jax_tsl_hole_in_map.log", -1, "the chunks"},
	{"ort_arena_growth.log", -1, "the chunks"},
	{"tf08_summary_only_no_time.log", -1, "the chunks: only those in use, by size"},
	{"tf111_interleaved_excerpt.log", -1, "how large the pool is: these chunks may be a part of it"},
	{"tf115_windows_excerpt.log", -1, "how large the pool is: these chunks may be a part of it"},
	{"tf12_inuse_then_free_markdown.log", -1, "the exact size of the request"},
	{"tf18_stats_only.log", -1, "the chunks"},
	{"tf20_k80_1037_chunks.log.gz", -1, ""},
	{"tf20_notebook_cell.log.gz", -1, ""},
	{"tf213_a100_fragmented.log", 411041792, ""},
	{"tf213_a100_nearly_full_1.log.gz", -1, ""},
	{"tf213_fragmented_progress_bar.log.gz", 1200128, ""},
	{"tf22_many_regions_cut.log", -1, "28.5 MiB of the regions"},
}

// walked are the lines that walk.py, the plain parser beside the logs, prints of a dump.
var walked = regexp.MustCompile(`dump 1 at line (\d+) allocator (\S+)\n  requested (\S+) \(printed (\S+)\); in use (\d+) chunks (\d+) bytes; free (\d+) chunks (\d+) bytes; largest free (\d+); regions printed (\d+) .*\n  stats \{(.*)\}; `)

// TestRealLogs holds what is read of logs of TensorFlow 0.8 to 2.13, JAX and ONNX Runtime to the plain parser, to the
// byte, and the segments to the chunks.
func TestRealLogs(t *testing.T) {
	dir := filepath.Join(outside.Folder(t, "recordings"), "bfc")
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not in PATH")
	}
	for _, r := range realLogs {
		t.Run(r.file, func(t *testing.T) {
			path := filepath.Join(dir, r.file)
			l := read(t, path)
			require.Len(t, l.Failures, 1)
			got := tell(t, l.Failures[0])
			assert.Equal(t, r.barrier >= 0, got.Fragmented != nil && *got.Fragmented)
			if r.barrier >= 0 {
				assert.Equal(t, r.barrier, got.Barrier.InUse.Bytes)
				assert.GreaterOrEqual(t, got.Barrier.Room, *got.Requested)
				assert.Contains(t, l.Failures[0].String(), "\nfragmented: ")
			}
			if r.lacks == "" {
				assert.Empty(t, got.Lacks)
			} else {
				assert.Contains(t, got.Lacks, r.lacks)
			}
			out, err := exec.Command(python, filepath.Join(dir, "walk.py"), path).Output()
			require.NoError(t, err)
			want := walked.FindStringSubmatch(string(out))
			if want == nil {
				assert.Contains(t, string(out), "no dump")
				return
			}
			number := func(i int) alloc.Bytes { n, _ := strconv.ParseInt(want[i], 10, 64); return alloc.Bytes(n) }
			assert.Equal(t, int(number(1)), got.Line)
			assert.Equal(t, strings.Trim(want[2], "?"), got.Allocator)
			if want[3] != "None" {
				assert.Equal(t, number(3), *got.Requested)
			}
			assert.Equal(t, strings.TrimPrefix(want[4], "None"), got.Words)
			assert.Len(t, got.Regions, int(number(10)))
			if used, free := (mem.Tally{Count: int64(number(5)), Bytes: number(6)}), (mem.Tally{Count: int64(number(7)), Bytes: number(8)}); used.Count+free.Count > 0 {
				assert.Equal(t, used, *got.InUse)
				assert.Equal(t, free, *got.Free)
				assert.Equal(t, number(9), *got.Largest)
				requireSegments(t, l, used, free)
			} else {
				assert.Nil(t, got.Free)
				assert.Nil(t, l.Dump)
			}
			if limit := regexp.MustCompile(`'Limit': (\d+)`).FindStringSubmatch(want[11]); limit != nil {
				assert.Equal(t, limit[1], strconv.FormatInt(int64(*got.Limit), 10))
			}
		})
	}
	_, _, _, err = bfc.Read(strings.NewReader("nothing\n"))
	assert.Equal(t, bfc.ErrNoFailure, err)
	f, err := os.Open(filepath.Join(dir, "tf1_windows_backslash_warnings.log"))
	require.NoError(t, err)
	defer f.Close()
	_, _, _, err = bfc.Read(f)
	assert.ErrorIs(t, err, bfc.ErrNoFailure)
	assert.ErrorContains(t, err, "of its 6 warnings each says that it is no failure")
}

// requireSegments checks that the snapshot of a log has its chunks, and no others.
func requireSegments(t *testing.T, l *logged, used, free mem.Tally) {
	s := l.Dump.Snapshot
	x := explain.Snapshot(s)
	assert.Equal(t, used, s.Live)
	assert.Equal(t, used.Bytes, x.Requested)
	assert.Equal(t, used.Bytes+free.Bytes, x.Reserved)
	count := int64(0)
	for _, segment := range s.Segments {
		require.NoError(t, segment.Check())
		for _, b := range segment.Blocks {
			if b.State == alloc.Inactive {
				count++
			}
		}
	}
	assert.Equal(t, free.Count, count)
	sum := mem.Tally{}
	for _, row := range l.Usage.Rows {
		sum = sum.Add(row.Live)
	}
	assert.Equal(t, used, sum)
}

// TestOwnLog reads a log as TensorFlow 2.15 writes it, built with its memory debugging, which names operations.
func TestOwnLog(t *testing.T) {
	l := read(t, filepath.Join("testdata", "oom.log"))
	want, err := os.ReadFile(filepath.Join("testdata", "oom.txt"))
	require.NoError(t, err)
	require.Len(t, l.Failures, 1)
	assert.Equal(t, string(want), l.Failures[0].String())
	requireSegments(t, l, mem.Tally{Count: 4, Bytes: 192 * alloc.MiB}, mem.Tally{Count: 3, Bytes: 320 * alloc.MiB})
	assert.Equal(t, "train_step/Adam/step", tell(t, l.Failures[0]).Barrier.Chunks[0].Name)
	var sites []string
	for _, row := range l.Usage.Rows {
		sites = append(sites, row.CallSite.String())
	}
	assert.ElementsMatch(t, []string{"dense/kernel", "train_step/Adam/step", "conv2d_17/Relu", "conv2d_18/Relu"}, sites)
	assert.Equal(t, 200*alloc.MiB, l.Dump.OOM.Requested)
	assert.Equal(t, 140*alloc.MiB, l.Dump.OOM.LargestInactive)
}

// chunks is a pool of 4 MiB free, 1 MiB in use and 3 MiB free, in the words of a release.
const in = "2026-01-02 03:04:05.678901: I tensorflow/core/common_runtime/bfc_allocator.cc:700] "

// TestForms reads the same pool in the words of different releases.
func TestForms(t *testing.T) {
	for name, chunks := range map[string]string{
		"1.2, in use first": in + "Chunk at 0x500000 of size 1048576\n" + in + "Free at 0x100000 of size 4194304\n" + in + "Free at 0x600000 of size 3145728\n",
		"1.11":              in + "Free  at 0x100000 of size 4194304\n" + in + "Chunk at 0x500000 of size 1048576\n" + in + "Free  at 0x600000 of size 3145728\n",
		"1.15, Windows":     in + "Free  at 0000000000100000 next 3 of size 4194304\r\n" + in + "InUse at 0000000000500000 next 4 of size 1048576\r\n" + in + "Free  at 0000000000600000 next 5 of size 3145728\r\n",
		"2.2":               in + "Next region of size 8388608\n" + in + "Free  at 100000 of size 4194304 next 1\n" + in + "InUse at 500000 of size 1048576 next 2\n" + in + "Free  at 600000 of size 3145728 next 18446744073709551615\n",
		"XLA, newest":       in + "Free  at 100000 of size 4194304 tag 0 next 1\n" + in + "InUse at 500000 of size 1048576 tag 3 allocation_annotation jit(step)/dot next 2 freed_at_count 7\n" + in + "Free  at 600000 of size 3145728 next 3\n",
		"a notebook":        `   "` + in + `Free  at 0x100000 next 3 of size 4194304\n",` + "\n" + `   "` + in + `InUse at 0x500000 next 4 of size 1048576\n",` + "\n" + `   "` + in + `Free  at 0x600000 next 5 of size 3145728\n"` + "\n",
		"ONNX Runtime": strings.ReplaceAll(in, "bfc_allocator.cc:700]", "[E:onnxruntime:, bfc_arena.cc:400 DumpMemoryLog]") + "  Free  at 0x100000 of size 4194304\n" +
			"x bfc_arena.cc:401]   Chunk at 0x500000 of size 1048576\n" + "x bfc_arena.cc:402]   Free  at 0x600000 of size 3145728\n",
	} {
		l := parse(t, in+"Allocator (GPU_3_bfc) ran out of memory trying to allocate 5.00MiB (rounded to 5242880)requested by op \n"+chunks)
		require.Len(t, l.Failures, 1, name)
		got := tell(t, l.Failures[0])
		assert.Equal(t, mem.Tally{Count: 1, Bytes: alloc.MiB}, *got.InUse, name)
		assert.Equal(t, mem.Tally{Count: 2, Bytes: 7 * alloc.MiB}, *got.Free, name)
		assert.True(t, *got.Fragmented, name)
		assert.Equal(t, mem.Tally{Count: 1, Bytes: alloc.MiB}, got.Barrier.InUse, name)
		assert.Equal(t, 8*alloc.MiB, got.Barrier.Room, name)
		assert.Equal(t, 3, l.Dump.Snapshot.Ordinal)
		if name == "XLA, newest" {
			assert.Equal(t, "jit(step)/dot", got.Barrier.Chunks[0].Name)
		}
	}
}

// TestManyFailures: each begins where memory runs out again, or where the bins begin again.
func TestManyFailures(t *testing.T) {
	one := in + "Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.00KiB.  Current allocation summary follows.\n" +
		in + "Bin (256): \tTotal Chunks: 1, Chunks in use: 1.\n" + in + "InUse at 100 of size 256 next 1\n"
	l := parse(t, one+one+in+"Bin (256): \tTotal Chunks: 1, Chunks in use: 1.\n"+in+"InUse at 100 of size 512 next 1\n")
	require.Len(t, l.Failures, 3)
	assert.Equal(t, alloc.Bytes(512), tell(t, l.Failures[2]).InUse.Bytes)
	assert.Contains(t, l.Failures[0].String(), "1.00KiB requested")
	assert.Contains(t, l.Failures[0].String(), "too little is free: 1.0 KiB is missing")
}

// TestWhatDoesNotFit: chunks that lie over others are left out and counted, and hostile numbers are no chunks.
func TestWhatDoesNotFit(t *testing.T) {
	l := parse(t, in+"InUse at 100 of size 512 next 1\n"+in+"InUse at 200 of size 512 next 1\n"+in+"Free  at ffffffffffffffff of size 9223372036854775807 next 1\n"+
		in+"InUse at 400 of size 99999999999999999999 next 1\n"+in+"InUse at zz of size 3\n"+in+"InUse at 1 of size 0\n")
	got := tell(t, l.Failures[0])
	assert.Equal(t, int64(2), got.InUse.Count)
	assert.Contains(t, fmt.Sprint(got.Lacks), "1 chunks lie over others")
	assert.Len(t, l.Dump.Snapshot.Segments, 1)
}

func FuzzRead(f *testing.F) {
	text, err := os.ReadFile(filepath.Join("testdata", "oom.log"))
	require.NoError(f, err)
	f.Add(string(text))
	f.Add(create(1<<20) + reserve(65536) + grow(4096, 69632) + shrink(4096, 65536) + byExecutor + caught)
	f.Fuzz(func(t *testing.T, text string) {
		failures, d, _, err := bfc.Read(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, failure := range failures {
			_ = failure.String()
			_, err := json.Marshal(failure)
			require.NoError(t, err)
		}
		if d != nil {
			for _, s := range d.Snapshot.Segments {
				require.NoError(t, s.Check())
			}
		}
	})
}

// TestSizesThatNoDeviceHas are no chunks: their sums would not fit.
func TestSizesThatNoDeviceHas(t *testing.T) {
	at := "I tensorflow/core/common_runtime/bfc_allocator.cc:1] "
	l := parse(t, at+"InUse at 1000 of size 4611686018427387904 next 1\n"+at+"InUse at 1000 of size 512 next 1\n"+at+"Next region of size 9223372036854775807\n"+
		at+"9223372036854775807 Chunks of size 9223372036854775807 totalling 1B\n"+at+"4 Chunks of size 9223372036854775807 totalling 1B\n")
	got := tell(t, l.Failures[0])
	assert.Equal(t, &mem.Tally{Count: 1, Bytes: 512}, got.InUse)
	assert.Empty(t, got.Regions)
	l = parse(t, at+"9223372036854775807 Chunks of size 512 totalling 1B\n"+at+"2 Chunks of size 256 totalling 512B\n")
	assert.Equal(t, &mem.Tally{Count: 2, Bytes: 512}, tell(t, l.Failures[0]).InUse)
}

// TestXLAsRequestIsAWholeChunk: XLA prints what the program asked for, and the allocator looks for a chunk, whose size is a
// multiple of 256 bytes. A free chunk that is smaller than that does not do, so the pool is in pieces and not merely odd.
func TestXLAsRequestIsAWholeChunk(t *testing.T) {
	for asked, want := range map[string]alloc.Bytes{"1": 256, "256": 256, "257": 512, "1048577": alloc.MiB + 256, "1048832": alloc.MiB + 256} {
		l := parse(t, in+"Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.00MiB.  Current allocation summary follows.\n"+
			in+"Free  at 100000 of size 1048576 next 1\n"+in+"InUse at 200000 of size 256 next 2\n"+in+"Free  at 200100 of size 1048576 next 3\n"+
			"jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate "+asked+" bytes.\n")
		got := tell(t, l.Failures[0])
		require.NotNil(t, got.Requested, asked)
		assert.Equal(t, want, *got.Requested, asked)
		assert.Equal(t, want > alloc.MiB, *got.Fragmented, asked)
	}
	l := parse(t, in+"Allocator (GPU_0_bfc) ran out of memory trying to allocate 1.00MiB (rounded to 1048832)requested by op x\n"+
		in+"Free  at 100000 of size 1048576 next 1\nOut of memory while trying to allocate 1048577 bytes.\nOut of memory while trying to allocate 7 bytes.\n")
	assert.Equal(t, alloc.MiB+256, *tell(t, l.Failures[0]).Requested, "what the allocator itself rounded stands")
}

// The lines of ONNX Runtime 1.32.
const (
	extend     = "2026-01-02 03:04:05.678 [I:onnxruntime:Default, bfc_arena.cc:335 AllocateRawInternal] Extending BFCArena for Cpu. bin_num:8 (requested) num_bytes: 9 (actual) rounded_bytes:256\n"
	lacks      = "Non-zero status code returned while running Sin node. Name:'' Status Message: /onnxruntime_src/onnxruntime/core/framework/bfc_arena.cc:360 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, onnxruntime::Stream*) Available memory of 1024 is smaller than requested bytes of 4096\n"
	byExecutor = "2026-01-02 03:04:05.678 [E:onnxruntime:, sequential_executor.cc:677 ExecuteKernel] " + lacks
	caught     = "onnxruntime.capi.onnxruntime_pybind11_state.Fail: [ONNXRuntimeError] : 1 : FAIL : " + lacks
)

func create(limit uint64) string {
	return fmt.Sprintf("2026-01-02 03:04:05.678 [I:onnxruntime:Default, bfc_arena.cc:28 BFCArena] Creating BFCArena for Cpu with following configs: initial_chunk_size_bytes: 1048576 memory limit: %d arena_extend_strategy: 1\n", limit)
}

func reserve(n int) string {
	return fmt.Sprintf("2026-01-02 03:04:05.678 [I:onnxruntime:Default, bfc_arena.cc:281 Reserve] Reserving memory in BFCArena for Cpu size: %d\n", n)
}

func grow(by, total int) string {
	return extend + fmt.Sprintf("x bfc_arena.cc:205 Extend] Extended allocation by %d bytes.\nx bfc_arena.cc:208 Extend] Total allocated bytes: %d\nx bfc_arena.cc:211 Extend] Allocated memory at 0x1 to 0x2\n", by, total)
}

func shrink(by, total int) string {
	return fmt.Sprintf("x [V:onnxruntime:Default, bfc_arena.cc:528 Shrink] Cpu BFC Arena shrunk by %d bytes.  The total allocated bytes is now %d\n", by, total)
}

// TestOneFailureIsOneEntry: the executor logs what the exception says again, and growth is no failure. Two runs that fail
// alike are two.
func TestOneFailureIsOneEntry(t *testing.T) {
	for text, want := range map[string]int{
		byExecutor + lacks + "Traceback (most recent call last):\n" + caught: 1, // the end of an exception of C++, then Python's
		caught:              1,
		byExecutor + caught: 1,
		byExecutor + caught + byExecutor + caught: 2,
		caught + caught + caught:                  3, // without the executor's line nothing says that two are one
		grow(4096, 8192) + byExecutor + caught:    1,
		byExecutor:                                1,
	} {
		l := parse(t, text)
		assert.Len(t, l.Failures, want, text)
		for _, f := range l.Failures {
			assert.Equal(t, alloc.Bytes(4096), *tell(t, f).Requested)
			assert.Contains(t, f.String(), " ran out of memory: 4.0 KiB requested (4096 bytes) by Sin\n")
			assert.Contains(t, f.String(), "its limit leaves 1.0 KiB: 3.0 KiB too little\n")
		}
	}
}

// TestAnArenaAddsUp: what an arena has is what it grew by, less what it gave back, and what was reserved in it.
func TestAnArenaAddsUp(t *testing.T) {
	for text, want := range map[string]string{
		grow(4096, 4096): "it grew once, by 4.0 KiB\nthe pool has 4.0 KiB\n",
		create(1<<20) + grow(4096, 4096) + grow(8192, 12288):                      "it grew 2 times, by 12.0 KiB, at last by 8.0 KiB\nthe pool has 12.0 KiB of the 1.0 MiB that it may have\n",
		create(1<<20) + reserve(65536) + reserve(65536) + grow(4096, 69632):       "it grew once, by 4.0 KiB; it had 64.0 KiB more, reserved for weights or from before the log\nthe pool has 68.0 KiB of the 1.0 MiB that it may have\n",
		create(1<<20) + grow(4096, 4096) + grow(8192, 12288) + shrink(8192, 4096): "it grew 2 times, by 12.0 KiB, at last by 8.0 KiB, and gave 8.0 KiB back\nthe pool has 4.0 KiB of the 1.0 MiB that it may have\n",
		create(1<<20) + grow(4096, 4096) + shrink(4096, 0) + grow(8192, 8192):     "it grew 2 times, by 12.0 KiB, at last by 8.0 KiB, and gave 4.0 KiB back\nthe pool has 8.0 KiB of the 1.0 MiB that it may have\n",
		create(math.MaxUint64) + grow(4096, 4096):                                 "it grew once, by 4.0 KiB\nthe pool has 4.0 KiB\n",
		// the weights of a session that ended are gone without a word
		create(1<<20) + reserve(65536) + grow(4096, 69632) + grow(4096, 8192): "it grew 2 times, by 8.0 KiB, at last by 4.0 KiB\nthe pool has 8.0 KiB of the 1.0 MiB that it may have\n",
	} {
		l := parse(t, text)
		require.Len(t, l.Failures, 1, text)
		assert.Contains(t, l.Failures[0].String(), "allocator Cpu grew; the log has no failure of it\n"+want)
		got := tell(t, l.Failures[0])
		assert.True(t, got.Grew)
		var sum alloc.Bytes
		for _, n := range got.Regions {
			sum += n
		}
		assert.Equal(t, *got.Pool, sum-got.Shrunk+got.Reserved, text)
	}
}

// TestArenasOfOneName: an environment and each session have their own, and a failure is of the one whose limit leaves so much.
func TestArenasOfOneName(t *testing.T) {
	two := create(13312) + create(math.MaxUint64) + grow(4096, 4096) + grow(1<<20, 1<<20) + grow(8192, 12288) + grow(1<<20, 2<<20)
	l := parse(t, two)
	require.Len(t, l.Failures, 2)
	assert.Equal(t, []alloc.Bytes{4096, 8192}, tell(t, l.Failures[0]).Regions)
	assert.Equal(t, []alloc.Bytes{1 << 20, 1 << 20}, tell(t, l.Failures[1]).Regions)
	l = parse(t, two+byExecutor+caught)
	require.Len(t, l.Failures, 1)
	got := tell(t, l.Failures[0])
	assert.Equal(t, []alloc.Bytes{4096, 8192}, got.Regions)
	assert.Equal(t, alloc.Bytes(13312), *got.Limit)
	assert.Equal(t, alloc.Bytes(12288), *got.Pool)
	l = parse(t, create(100)+create(200)+grow(50, 50)+grow(60, 60)+byExecutor)
	assert.Nil(t, tell(t, l.Failures[0]).Pool, "neither has that much left")
	assert.Equal(t, alloc.Bytes(1<<20), func() alloc.Bytes {
		l := parse(t, grow(1<<20, 1<<20)+byExecutor)
		return *tell(t, l.Failures[0]).Limit - 1024
	}(), "the limit is what the only arena has, and what it leaves")
}

// TestSurvived: without the buffer of a memory pattern the program goes on.
func TestSurvived(t *testing.T) {
	survived := "2026-01-02 03:04:05.678 [I:onnxruntime:, execution_frame.cc:518 operator()] Allocation of memory pattern buffer for Device:[DeviceType:0] failed. Error:" + strings.TrimPrefix(lacks, "Non-zero status code returned while running Sin node. Name:'' Status Message: ")
	_, _, _, err := bfc.Read(strings.NewReader(survived))
	assert.ErrorIs(t, err, bfc.ErrNoFailure)
	assert.ErrorContains(t, err, "1 allocations of a memory pattern failed, which the program did without")
	assert.Len(t, parse(t, survived+byExecutor+caught).Failures, 1)
	l := parse(t, grow(4096, 4096)+survived)
	assert.True(t, tell(t, l.Failures[0]).Grew)
}

// TestRealArenas: logs of ONNX Runtime 1.31.
func TestRealArenas(t *testing.T) {
	dir := filepath.Join(outside.Folder(t, "inputs"), "ort")
	l := read(t, filepath.Join(dir, "ort-grew-and-failed.log"))
	require.Len(t, l.Failures, 1)
	got := tell(t, l.Failures[0])
	assert.Equal(t, "Cpu", got.Allocator)
	assert.Equal(t, alloc.Bytes(17825792), *got.Pool)
	assert.Equal(t, alloc.Bytes(17825792+77056), *got.Limit)
	assert.Equal(t, 16*alloc.MiB, got.Reserved)
	l = read(t, filepath.Join(dir, "ort-one-failure-twice.log"))
	require.Len(t, l.Failures, 1)
	assert.Equal(t, alloc.Bytes(1228800), *tell(t, l.Failures[0]).Requested)
}
