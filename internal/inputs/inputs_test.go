package inputs_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/inputs"
)

// beginnings are inputs of each kind.
var beginnings = map[*inputs.Kind][]string{
	inputs.Dump:            {`{"schema":"gpumemtrack.dump","version":2,"snapshot":{"schema":"gpumemtrack.snapshot"`, "\n {\n  \"history\": {},\n  \"schema\": \"gpumemtrack.dump\""},
	inputs.Snapshot:        {`{"schema":"gpumemtrack.snapshot","version":1}`},
	inputs.Recording:       {`{"schema":"gpumemtrack.recording/1","start":"2026-`, "time_seconds,gpu,name,uuid,target,memory_used_bytes"},
	inputs.Profile:         {"\x0a\x04\x08\x01\x10\x02\x12"},
	inputs.PyTorchSnapshot: {"\x80\x04\x95\x00", "(dp0\n", `{"segments": [{"device": 0`, `{"device_traces":[[]]}`, `[{"address": 1, "total_size": 2`, "[]", "[[]]"},
	inputs.NvidiaSMI: {
		"timestamp, name, utilization.gpu [%], memory.used [MiB]\n", "index, memory.used [MiB], memory.total [MiB]", "# name, utilization.gpu [%]",
		"2024/01/16 14:44:16.990, P8, 26, 0 %, 0 %, 23028 MiB, 22508 MiB, 7 MiB\n", "1024 MiB\n1025 MiB\n", "memory.used [MiB]\n1 MiB\n", "pid, process_name, used_gpu_memory [MiB]\n",
		"<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n<nvidia_smi_log>", "#Date       Time        gpu     fb   bar1   ccpm\n", "# gpu   pid  type     fb   ccpm    command\n", "#gpu, pwr, gtemp\n",
		"Mon Mar  2 10:00:00 2026\n+---+\n| NVIDIA-SMI 570.86.10              Driver Version: 570.86.10      CUDA Version: 12.8     |\n",
	},
	inputs.AMDSMI: {
		`[{"gpu": 0, "usage": {"gfx_activity": {"value": 5}}, "mem_usage": {}}]`, `{"gpu_data": [{"gpu": 0}]}`, "gpu,gfx,gfx_clock,vram_used,vram_total\n", "timestamp,gpu,power_usage\n",
	},
	inputs.ROCmSMI: {`{"card0": {"VRAM Total Memory (B)": "1"}}`, "device,VRAM Total Memory (B),VRAM Total Used Memory (B)\ncard0,1,1\n"},
	inputs.Gpustat: {`{"hostname": "a", "query_time": "2026-01-01T00:00:00", "gpus": []}`},
	inputs.RMM: {
		"Thread,Time,Action,Pointer,Size,Stream\n1,10:00:00.1,allocate,0x1,1,0x0\n", "Event Type,Device ID,Address,Stream,Size (bytes),Free Memory,Total Memory\n",
		"INFO starting\n1979932,14:21:19.998533,allocate,0x30a000000,256,0x2\n",
	},
	inputs.Nvitop:           {`{"metrics-daemon/gpu:0/memory_used (MiB)/mean": 1}`, "metrics-daemon/host/cpu_percent (%)/mean,metrics-daemon/gpu:0/memory_used (MiB)/mean\n"},
	inputs.TraceEvents:      {`{"traceEvents":[]}`},
	inputs.Kineto:           {`{"schemaVersion": 1, "traceEvents": [`, "{\n    \"schemaVersion\": 1,\n    \"deviceProperties\": [],"},
	inputs.MemoryTimeline:   {"[[100, 200], [[0, 0", "[[-1, 1, 65536, 0], [-1"},
	inputs.GGUF:             {"GGUF\x03\x00\x00\x00"},
	inputs.Safetensors:      {"\x40\x00\x00\x00\x00\x00\x00\x00{\"w\": {}}"},
	inputs.TorchSave:        {"PK\x03\x04\x00\x00\x08\x08\x00\x00model/data.pkl", "\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."},
	inputs.TorchDistributed: {"\x80\x04\x95\x00\x00\x8c%torch.distributed.checkpoint.metadata\x94"},
	inputs.ModelConfig:      {`{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}`, ` {"_class_name": "FluxTransformer2DModel"}`},
	inputs.HTML:             {"<!DOCTYPE html>\n<html>", "\n<HTML lang=en>"},
	inputs.LFS:              {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 132\n"},
	inputs.Packed:           {"\xfd7zXZ\x00\x00"},
	inputs.Archive:          {"7z\xbc\xaf\x27\x1c\x00", "PK\x03\x04\x14\x00", "a.log" + strings.Repeat("\x00", 252) + "ustar\x00"},
	inputs.BFC:              {"2026-01-02 03:04:05.678901: I tsl/framework/bfc_allocator.cc:1083] Next region of size 8388608\n"},
	inputs.ErrorText: {
		"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 108.00 MiB", "\ufeffRuntimeError: CUDA out of memory. Tried",
		"\x1b[31mERROR\x1b[0m RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 bytes.", "[INFO] hello\n[rank3]: HIP out of memory. Tried",
	},
	inputs.XLADump: {
		"BufferAssignment:\nallocation 0: size 4, parameter 0", "HloLiveRange (max 12):\n", "HloModule jit_step, is_scheduled=true", "Memory Space: default (color=0)\nTotal bytes: 4",
		"Total bytes used: 5 (5B)\n\nAllocations sorted by size:\n\ncumulative_size; total_size - cumulative_size; allocation\n",
	},
	inputs.EngineLog:    {"INFO 01-02 03:04:05 [gpu_model_runner.py:1] Model loading took 1.5 GiB and 2 seconds", "llama_kv_cache:      CUDA0 KV buffer size =   180.00 MiB"},
	inputs.PyTorchStats: {"|=====|\n| PyTorch CUDA memory summary, device ID 0 |", `{"allocated_bytes.all.current": 97}`},
	inputs.Text:         {"hello", "{}", "[INFO] nothing", `{"a":[1,2`},
	nil:                 {"", "\x00\x01\x02", "  \n"},
}

func TestEachKindIsKnownByItsBeginning(t *testing.T) {
	for kind, texts := range beginnings {
		for _, text := range texts {
			assert.Equal(t, kind, inputs.Of([]byte(text)), "%.60q", text)
		}
	}
	for _, kind := range inputs.All() {
		assert.NotEmpty(t, beginnings[kind], kind.Name)
	}
}

// TestLogsOfSeveralKinds: of those that a log's beginning shows, a command gets the one that it reads.
func TestLogsOfSeveralKinds(t *testing.T) {
	head := []byte("I bfc_allocator.cc:1] Next region of size 1\nCUDA out of memory. Tried to allocate 1 MiB\n")
	assert.Equal(t, inputs.BFC, inputs.For("show", head))
	assert.Equal(t, inputs.BFC, inputs.For("estimate", head))
	assert.Equal(t, inputs.ErrorText, inputs.For("show", []byte("CUDA out of memory")))
}

// TestScan finds what stands far from a log's beginning.
func TestScan(t *testing.T) {
	text := strings.Repeat("step 1 of 2\n", 1<<18) + "CUDA out of memory.\n" + strings.Repeat("x", 1<<18) + "I bfc_allocator.cc:1] Free"
	assert.Equal(t, inputs.Text, inputs.Of([]byte(text)))
	kinds, err := inputs.Scan(strings.NewReader(text))
	require.NoError(t, err)
	assert.Equal(t, []*inputs.Kind{inputs.BFC, inputs.ErrorText}, kinds)
}

// TestTheTableIsWhole: each kind says what it is, and what to do with it.
func TestTheTableIsWhole(t *testing.T) {
	names := make(map[string]bool)
	for _, k := range inputs.All() {
		assert.False(t, names[k.Name], "%s stands in the table twice", k.Name)
		names[k.Name] = true
		assert.Regexp(t, "^[a-z][a-z0-9-]*$", k.Name)
		assert.Regexp(t, "^an? ", k.What, k.Name)
		assert.NotEmpty(t, k.Source, k.Name)
		assert.NotEqual(t, k.Instead == "", len(k.Takes) == 0, k.Name)
		for _, w := range k.Words {
			assert.GreaterOrEqual(t, len(w), 8, "a scan goes on by about the length of the shortest word")
		}
		by, err := inputs.ByName(k.Name)
		require.NoError(t, err)
		assert.Equal(t, k, by)
	}
	_, err := inputs.ByName("nothing")
	assert.ErrorContains(t, err, `there is no kind "nothing": want one of dump, snapshot, `)
	assert.Contains(t, inputs.Names("chart"), "recording")
}

// TestHelpListsEachKind: what a command reads stands in the page once, and the page is less than two screens long.
func TestHelpListsEachKind(t *testing.T) {
	page := inputs.Help()
	for _, k := range inputs.All() {
		listed := 0
		if len(k.Takes) > 0 {
			listed = 1
		}
		assert.Equal(t, listed, strings.Count(page, "\n  "+k.Name+" "), k.Name)
	}
	assert.Less(t, strings.Count(page, "\n"), 80)
}

func TestHelpFitsATerminal(t *testing.T) {
	for line := range strings.Lines(inputs.Help()) {
		assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), 80, line)
	}
}

func FuzzOf(f *testing.F) {
	for _, texts := range beginnings {
		for _, text := range texts {
			f.Add([]byte(text))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		k := inputs.Of(text)
		if k != nil && k != inputs.Text {
			by, err := inputs.ByName(k.Name)
			require.NoError(t, err)
			assert.Equal(t, k, by)
		}
	})
}
