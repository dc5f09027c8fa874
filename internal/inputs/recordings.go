package inputs

import (
	"regexp"
	"slices"
	"strings"
)

// What other tools print of GPU memory over time. Package nvml/recordings reads it.
var (
	NvidiaSMI = &Kind{
		Name: "nvidia-smi", What: "a recording of nvidia-smi", Source: "nvidia-smi, --query-gpu, --query-compute-apps, -q -x, dmon, pmon",

		Takes: []string{"chart"},
		is: func(h *Head) bool {
			return h.IsText() && (isQuery(h.Line()) || isMonitor(h) || isSummary(h) || strings.HasPrefix(h.text, "<") && h.Contains("<nvidia_smi_log"))
		},
	}
	AMDSMI = &Kind{
		Name: "amd-smi", What: "a recording of amd-smi", Source: "amd-smi metric, monitor (--csv, --json)",
		Takes: []string{"chart"},
		is: func(h *Head) bool {
			if h.JSON() {
				return h.Has("gpu_data") || h.Has("gpu") && h.Contains(`"mem_usage"`, `"vram_used"`, `"used_vram"`, `"gfx_activity"`, `"power_usage"`)
			}
			cells := cellsOf(h.Line())
			return slices.Contains(cells, "gpu") && containsAny(cells, "used_vram", "vram_used", "gfx_activity", "power_usage", "socket_power")
		},
	}
	ROCmSMI = &Kind{
		Name: "rocm-smi", What: "a recording of rocm-smi", Source: "rocm-smi --showmeminfo vram (--csv, --json)",
		Takes: []string{"chart"},
		is: func(h *Head) bool {
			_, card := h.Key(func(key string) bool { return strings.HasPrefix(key, "card") })
			return h.IsText() && (card || strings.HasPrefix(h.text, "device,")) && h.Contains("VRAM Total", "GPU use (%)", "(Sensor ", "Package Power (W)")
		},
	}
	Gpustat = &Kind{
		Name: "gpustat", What: "a recording of gpustat", Source: "gpustat --json", Takes: []string{"chart"},
		is: func(h *Head) bool { return h.Has("query_time") || h.Has("gpus") },
	}
	Nvitop = &Kind{
		Name: "nvitop", What: "a recording of nvitop", Source: "nvitop's ResourceMetricCollector", Takes: []string{"chart"},
		is: func(h *Head) bool {
			return (h.JSON() || strings.Contains(h.Line(), ",")) && h.Contains("/memory_used (MiB)/", "/memory_total (MiB)/", "/host/cpu_percent (%)")
		},
	}
)

// Histories of other tools.
var RMM = &Kind{
	Name: "rmm", What: "a log of RMM", Source: "RMM's logging_resource_adaptor (RAPIDS, Spark)",
	Takes: readsFiles,
	is: func(h *Head) bool {
		return h.IsText() && (h.Contains("Thread,Time,Action,Pointer,Size,Stream", "Event Type,Device ID,Address,Stream,Size (bytes)") || rmmLine.MatchString(h.text))
	},
}

// rmmLine matches a line of RMM's log.
var rmmLine = regexp.MustCompile(`(?m)^\d+,[0-9:.]+,(allocate|free|allocate failure),0x[0-9a-f]+,\d+,`)

// Kineto is before TraceEvents in the table: both are traces.
var Kineto = &Kind{
	Name: "kineto", What: "a trace of PyTorch's profiler", Source: "torch.profiler with profile_memory=True",
	Takes: readsFiles,
	is:    func(h *Head) bool { return !h.List() && (h.Has("schemaVersion") || h.Has("deviceProperties")) },
}

var TraceEvents = &Kind{
	Name: "trace", What: "a trace", Source: "convert, and profilers",
	Instead: "trace events are for a viewer such as ui.perfetto.dev: read the dump that they were made of",
	is:      func(h *Head) bool { return h.Has("traceEvents") },
}

var recordings = []*Kind{Kineto, TraceEvents, RMM, ROCmSMI, AMDSMI, Gpustat, Nvitop, NvidiaSMI}

// isSummary recognises the table of nvidia-smi without options, which begins with a time.
func isSummary(h *Head) bool {
	const most = 8
	lines := h.Lines()
	return slices.ContainsFunc(lines[:min(len(lines), most)], func(line string) bool { return strings.HasPrefix(line, "| NVIDIA-SMI ") })
}

// withUnit matches a cell of nvidia-smi without a header.
var withUnit = regexp.MustCompile(`(^|, )\d+ MiB(,|$)`)

// isQuery reports whether a line is one of nvidia-smi's CSV: its header, or a row.
func isQuery(line string) bool {
	if len(line) > 1<<12 {
		return false
	}
	cells := cellsOf(strings.TrimLeft(line, "# "))
	return withUnit.MatchString(line) || containsAny(cells, "memory.used", "memory.free", "memory.total", "utilization.gpu", "used_gpu_memory", "used_memory", "power.draw", "temperature.gpu")
}

// cellsOf returns the cells of a header, without units.
func cellsOf(line string) []string {
	cells := strings.Split(line[:min(len(line), 1<<12)], ",")
	for i, c := range cells {
		name, _, _ := strings.Cut(strings.Trim(c, ` "`), " [")
		cells[i] = strings.ToLower(name)
	}
	return cells
}

func containsAny(cells []string, names ...string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return slices.Contains(cells, n) })
}

// isMonitor recognises the header of dmon and pmon among the first lines.
func isMonitor(h *Head) bool {
	const most = 8
	lines := h.Lines()
	return slices.ContainsFunc(lines[:min(len(lines), most)], func(line string) bool {
		if !strings.HasPrefix(line, "#") || len(line) > 1<<12 {
			return false
		}
		fields := strings.FieldsFunc(strings.ToLower(line), func(r rune) bool { return strings.ContainsRune("# ,\t\r", r) })
		return slices.Contains(fields, "gpu") && containsAny(fields, "fb", "pwr", "sm", "pid")
	})
}
