package recordings_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/nvml"
	"github.com/gpumemtrack/gpumemtrack/nvml/recordings"
)

// summary prints what each series of a recording has: "GPU 0 memory used: 3 of 1.0 GiB to 2.0 GiB".
func summary(rec nvml.Recording) (lines []string) {
	for _, s := range rec.Series {
		line := fmt.Sprintf("%s: %d of %s to %s", s.Label(), s.Len(), s.Quantity.Format(s.Min()), s.Quantity.Format(s.Max()))
		if s.Gaps() > 0 {
			line += fmt.Sprintf(", %d missing", s.Gaps())
		}
		if s.Capacity > 0 {
			line += fmt.Sprintf(", of %v", s.Capacity)
		}
		lines = append(lines, line)
	}
	return lines
}

func read(t *testing.T, text string, o recordings.Config) *recordings.File {
	t.Helper()
	file, err := recordings.Read(strings.NewReader(text), o)
	require.NoError(t, err)
	return file
}

var utc = recordings.Config{Location: time.UTC}

// TestFiles reads a small file of each tool.
func TestFiles(t *testing.T) {
	for name, want := range map[string]struct {
		format   string
		start    string
		duration time.Duration
		series   []string
	}{
		"smi_units.csv": {"nvidia-smi --query-gpu", "2026-03-02 10:00:00.507 +0000 UTC", 11 * time.Second, []string{
			"GPU memory used: 12 of 1.1 GiB to 17.5 GiB", "GPU utilization: 12 of 1 % to 94 %", "GPU power: 12 of 30.6 W to 291.2 W",
		}},
		"smi_reordered.log": {"nvidia-smi --query-gpu", "2026-03-02 10:04:50.426 +0000 UTC", 4 * time.Second, []string{
			"GPU memory used: 5 of 1.0 MiB to 40.8 GiB, of 93.6 GiB", "GPU utilization: 5 of 0 % to 0 %",
		}},
		"nvsmi.xml": {"nvidia-smi -q -x", "2026-03-02 10:00:00 +0000 UTC", 0, []string{"GPU 0 memory used: 1 of 22.5 GiB to 22.5 GiB, of 24.0 GiB"}},
		"looped.xml": {"nvidia-smi -q -x", "2026-03-02 10:00:00 +0000 UTC", 5 * time.Second, []string{
			"GPU 0 memory used: 2 of 19.5 GiB to 20.5 GiB, of 40.0 GiB", "GPU 0 pid 4711: 1 of 19.4 GiB to 19.4 GiB, of 40.0 GiB", "GPU 0 utilization: 1 of 97 % to 97 %",
			"GPU 0 power: 1 of 311.3 W to 311.3 W", "GPU 0 temperature: 1 of 61 °C to 61 °C", "GPU 0 fan speed: 0 of - to -, 1 missing",
			"GPU 0 graphics clock: 1 of 1410 MHz to 1410 MHz", "GPU 0 memory clock: 1 of 1215 MHz to 1215 MHz", "GPU 0 SM clock: 1 of 1410 MHz to 1410 MHz",
			"GPU 0 MIG 1 memory used: 1 of 12.0 MiB to 12.0 MiB, of 19.5 GiB",
			"GPU 1 memory used: 1 of 3.0 MiB to 3.0 MiB, of 40.0 GiB", "GPU 1 utilization: 0 of - to -, 1 missing",
		}},
		"table.txt": {"nvidia-smi", "2026-03-02 10:00:00 +0000 UTC", 5 * time.Second, []string{
			"GPU 0 memory used: 2 of 19.5 GiB to 20.0 GiB, of 40.0 GiB", "GPU 0 utilization: 2 of 97 % to 98 %", "GPU 0 power: 2 of 52 W to 52 W", "GPU 0 temperature: 2 of 33 °C to 33 °C", "GPU 0 fan speed: 0 of - to -, 2 missing",
			"GPU 1 memory used: 2 of 1.1 GiB to 1.1 GiB, of 24.0 GiB", "GPU 1 utilization: 2 of 3 % to 3 %", "GPU 1 power: 1 of 25 W to 25 W, 1 missing", "GPU 1 temperature: 2 of 45 °C to 45 °C", "GPU 1 fan speed: 2 of 30 % to 30 %",
		}},
		"dmon.txt": {"nvidia-smi dmon", "2026-03-01 10:11:12 +0000 UTC", 0, []string{"GPU 0 memory used: 1 of 17.8 GiB to 17.8 GiB"}},
		"pmon.txt": {"nvidia-smi pmon", "0001-01-01 00:00:00 +0000 UTC", 0, []string{"GPU 0 pid 4711: 1 of 17.8 GiB to 17.8 GiB"}},
		"gpustat.json": {"gpustat --json", "2026-03-02 10:00:00.123456 +0000 UTC", 0, []string{
			"GPU 0 memory used: 1 of 7.8 GiB to 7.8 GiB, of 12.0 GiB", "GPU 0 pid 48448: 1 of 3.9 GiB to 3.9 GiB, of 12.0 GiB", "GPU 0 pid 154213: 0 of - to -, 1 missing, of 12.0 GiB",
			"GPU 0 utilization: 1 of 76 % to 76 %", "GPU 0 power: 1 of 125.3 W to 125.3 W", "GPU 0 temperature: 1 of 80 °C to 80 °C", "GPU 0 fan speed: 1 of 16 % to 16 %",
			"GPU 1 memory used: 1 of 7.8 GiB to 7.8 GiB, of 12.0 GiB", "GPU 1 utilization: 0 of - to -, 1 missing", "GPU 1 power: 1 of 125.3 W to 125.3 W",
			"GPU 1 temperature: 1 of 79 °C to 79 °C", "GPU 1 fan speed: 1 of 16 % to 16 %",
		}},
	} {
		file, err := recordings.ReadFile(filepath.Join("testdata", name), utc)
		require.NoError(t, err, name)
		assert.Equal(t, want.format, file.Format, name)
		assert.Equal(t, want.start, file.Recording.Start.String(), name)
		assert.Equal(t, want.duration, file.Recording.Duration(), name)
		assert.Equal(t, want.series, summary(file.Recording), name)
		for _, note := range file.Notes {
			assert.Equal(t, "the file has no times: the axis counts samples", note, name)
		}
	}
}

// TestTexts reads texts in the forms that people have.
func TestTexts(t *testing.T) {
	const clock = "timestamp, index, memory.used [MiB], memory.total [MiB]\n"
	for name, test := range map[string]struct {
		text string
		want []string
		note string
	}{
		"nounits": {"timestamp, index, memory.used [MiB], utilization.gpu [%]\n2026/03/02 10:00:00.000, 0, 100, 5\n2026/03/02 10:00:00.001, 1, 200, 6\n",
			[]string{"GPU 0 memory used: 1 of 100.0 MiB to 100.0 MiB", "GPU 0 utilization: 1 of 5 % to 5 %", "GPU 1 memory used: 1 of 200.0 MiB to 200.0 MiB", "GPU 1 utilization: 1 of 6 % to 6 %"}, ""},
		"names of pandas":      {"timestamp,index,memory_used_mb,power_draw\n2026-03-02 10:00:00,0,100,5\n", []string{"GPU 0 memory used: 1 of 100.0 MiB to 100.0 MiB", "GPU 0 power: 1 of 5 W to 5 W"}, ""},
		"gigabytes":            {"timestamp,gpu_id,memory.used_GB\n2026/03/02 10:00:00.1,0,1.5\n", []string{"GPU 0 memory used: 1 of 1.5 GiB to 1.5 GiB"}, ""},
		"quotes, semicolons":   {"\"timestamp\";\"index\";\"memory.used [MiB]\"\n\"2026-03-02 10:00:00\";\"0\";\"100 MiB\"\n", []string{"GPU 0 memory used: 1 of 100.0 MiB to 100.0 MiB"}, ""},
		"decimal comma":        {"index, memory.used [MiB], power.draw [W]\n0, 100 MiB, 73,06 W\n", []string{"GPU 0 memory used: 1 of 100.0 MiB to 100.0 MiB", "GPU 0 power: 1 of 73.1 W to 73.1 W"}, "the file has no times: the axis counts samples"},
		"a header each time":   {clock + "2026/03/02 10:00:00.000, 0, 100 MiB, 1000 MiB\n" + clock + "2026/03/02 10:00:01.000, 0, 101 MiB, 1000 MiB\n", []string{"GPU 0 memory used: 2 of 100.0 MiB to 101.0 MiB, of 1000.0 MiB"}, ""},
		"CRLF":                 {strings.ReplaceAll(clock+"2026/03/02 10:00:00.000, 0, 100 MiB, 1000 MiB\n", "\n", "\r\n"), []string{"GPU 0 memory used: 1 of 100.0 MiB to 100.0 MiB, of 1000.0 MiB"}, ""},
		"missing":              {clock + "2026/03/02 10:00:00.000, 0, [N/A], [Not Supported]\n2026/03/02 10:00:01.000, 0, 5 MiB, [Unknown Error]\n", []string{"GPU 0 memory used: 1 of 5.0 MiB to 5.0 MiB, 1 missing"}, ""},
		"a torn last line":     {"timestamp, index, memory.used [MiB]\n2026/03/02 10:00:00.000, 0, 100\n2026/03/02 10:00:01.000, 0, 1", []string{"GPU 0 memory used: 1 of 100.0 MiB to 100.0 MiB"}, ""},
		"no newline, no tear":  {clock + "2026/03/02 10:00:00.000, 0, 100 MiB, 1000 MiB\n2026/03/02 10:00:01.000, 0, 101 MiB, 1000 MiB", []string{"GPU 0 memory used: 2 of 100.0 MiB to 101.0 MiB, of 1000.0 MiB"}, ""},
		"a comment":            {"# name, utilization.gpu [%], memory.used [MiB]\n# NVIDIA GeForce RTX 4090, 78 %, 18432 MiB\n", []string{"GPU memory used: 1 of 18.0 GiB to 18.0 GiB", "GPU utilization: 1 of 78 % to 78 %"}, "the file has no times: the axis counts samples"},
		"other output":         {"epoch 1, loss 2.5\n" + clock + "2026/03/02 10:00:00.000, 0, 100 MiB, 1000 MiB\nUnable to determine the device handle for GPU0000:02:00.0: GPU is lost.\n", []string{"GPU 0 memory used: 1 of 100.0 MiB to 100.0 MiB, of 1000.0 MiB"}, `2 lines hold no sample: line 1, "epoch 1, loss 2.5"`},
		"an unknown unit":      {clock + "2026/03/02 10:00:00.000, 0, 100 MiB, 1000 MiB\n2026/03/02 10:00:01.000, 0, 1 parsec, 1000 MiB\n", []string{"GPU 0 memory used: 1 of 100.0 MiB to 100.0 MiB, 1 missing, of 1000.0 MiB"}, `1 value in an unknown unit, or no number, such as "1 parsec": left out`},
		"times that are none":  {"timestamp, memory.used [MiB]\nt, 5\nt, 6\n", []string{"GPU memory used: 2 of 5.0 MiB to 6.0 MiB"}, "the file has no times: the axis counts samples"},
		"a bus":                {"pci.bus_id, memory.used [MiB]\n00000000:3B:00.0, 4 MiB\n00000000:8B:00.0, 5 MiB\n", []string{"GPU 00000000:3B:00.0 memory used: 1 of 4.0 MiB to 4.0 MiB", "GPU 00000000:8B:00.0 memory used: 1 of 5.0 MiB to 5.0 MiB"}, "the file has no times: the axis counts samples"},
		"processes":            {"gpu_uuid, pid, process_name, used_gpu_memory [MiB]\nGPU-a44622e3-2296-6285-0a86-84d0f6c67900, 42, python3, 1000 MiB\n", []string{"GPU-a44622e3 pid 42: 1 of 1000.0 MiB to 1000.0 MiB"}, "the file has no times: the axis counts samples"},
		"no header":            {"2026/03/02 10:00:00.000, Tesla T4, P8, 5 %, 15360 MiB, 3 MiB, 14930 MiB\n2026/03/02 10:00:01.000, Tesla T4, P0, 95 %, 15360 MiB, 5003 MiB, 9930 MiB\n", []string{"GPU memory used: 2 of 3.0 MiB to 4.9 GiB, of 15.0 GiB", "GPU utilization: 2 of 5 % to 95 %"}, "the file has no line with the names of its columns: by their shape, column 6 is the memory used, column 5 the memory in total, column 4 the utilization of the GPU"},
		"no header, one":       {"1129 MiB\n1130 MiB\n", []string{"GPU memory used: 2 of 1.1 GiB to 1.1 GiB"}, "the file has no line with the names of its columns: by their shape, column 1 is the memory used"},
		"UTF-8 with a mark":    {"\ufeffindex, memory.used [MiB]\n0, 1 MiB\n", []string{"GPU 0 memory used: 1 of 1.0 MiB to 1.0 MiB"}, "the file has no times: the axis counts samples"},
		"UTF-16 of PowerShell": {inUTF16("index, memory.used [MiB]\r\n0, 1 MiB\r\n"), []string{"GPU 0 memory used: 1 of 1.0 MiB to 1.0 MiB"}, "the file has no times: the axis counts samples"},
		"dmon": {"# gpu    pwr  gtemp     fb   bar1     sm    mem   mclk   pclk\n# Idx      W      C     MB     MB      %      %    MHz    MHz\n    0     30     41    512      5      0      0    405    300\n    1      -     42    513      5      1      0    405    300\n# gpu    pwr  gtemp     fb   bar1     sm    mem   mclk   pclk\n# Idx      W      C     MB     MB      %      %    MHz    MHz\n    0     31     41    514      5      0      0    405    300\n",
			[]string{"GPU 0 memory used: 2 of 512.0 MiB to 514.0 MiB", "GPU 0 utilization: 2 of 0 % to 0 %", "GPU 0 power: 2 of 30 W to 31 W", "GPU 0 temperature: 2 of 41 °C to 41 °C", "GPU 0 memory clock: 2 of 405 MHz to 405 MHz", "GPU 0 SM clock: 2 of 300 MHz to 300 MHz", "GPU 1 memory used: 1 of 513.0 MiB to 513.0 MiB", "GPU 1 utilization: 1 of 1 % to 1 %", "GPU 1 power: 0 of - to -, 1 missing", "GPU 1 temperature: 1 of 42 °C to 42 °C", "GPU 1 memory clock: 1 of 405 MHz to 405 MHz", "GPU 1 SM clock: 1 of 300 MHz to 300 MHz"}, "the file has no times: the axis counts samples"},
		"dmon as CSV":          {"#Time, gpu, fb, bar1\n#HH:MM:SS, Idx, MB, MB\n23:59:59, 0, 10, 5\n00:00:01, 0, 12, 5\n", []string{"GPU 0 memory used: 2 of 10.0 MiB to 12.0 MiB"}, ""},
		"pmon, names of words": {"#Time        gpu         pid   type     fb   ccpm    command\n#HH:MM:SS    Idx           #    C/G     MB     MB    name\n 10:00:00      0       4711     C    100      0    python3 -m train\n 10:00:00      1          -     -      -      -    -\n", []string{"GPU 0 pid 4711: 1 of 100.0 MiB to 100.0 MiB"}, ""},
		"amd-smi metric":       {`[{"gpu": 0, "usage": {"gfx_activity": {"value": 37, "unit": "%"}}, "mem_usage": {"total_vram": {"value": 16368, "unit": "MB"}, "used_vram": {"value": 2048, "unit": "MB"}}, "power": {"socket_power": {"value": 22, "unit": "W"}}, "temperature": {"edge": "N/A", "hotspot": {"value": 44, "unit": "C"}}, "clock": {"gfx_0": {"clk": {"value": 132, "unit": "MHz"}}}}]`, []string{"GPU 0 memory used: 1 of 2.0 GiB to 2.0 GiB, of 16.0 GiB", "GPU 0 utilization: 1 of 37 % to 37 %", "GPU 0 power: 1 of 22 W to 22 W", "GPU 0 temperature: 1 of 44 °C to 44 °C", "GPU 0 graphics clock: 1 of 132 MHz to 132 MHz"}, "the file has no times: the axis counts samples"},
		"amd-smi, ROCm 7":      {`{"gpu_data": [{"gpu": 0, "mem_usage": {"used_vram": {"value": 512, "unit": "MB"}}}]}` + "\n" + `{"gpu_data": [{"gpu": 0, "mem_usage": {"used_vram": {"value": 1, "unit": "GB"}}}]}`, []string{"GPU 0 memory used: 2 of 512.0 MiB to 1.0 GiB"}, "the file has no times: the axis counts samples"},
		"amd-smi monitor":      {"timestamp,gpu,gfx_clk,gfx,vram_used,vram_free,vram_total,vram_percent\n1790857026,0,132,10,283,196309,196592,0.0\n1790857027,0,132,10,300,196292,196592,0.0\n", []string{"GPU 0 memory used: 2 of 283.0 MiB to 300.0 MiB, of 192.0 GiB", "GPU 0 utilization: 2 of 10 % to 10 %", "GPU 0 graphics clock: 2 of 132 MHz to 132 MHz"}, ""},
		"rocm-smi":             {`{"card0": {"GPU use (%)": "12", "VRAM Total Memory (B)": "17163091968", "VRAM Total Used Memory (B)": "1073741824"}, "card10": {"VRAM Total Used Memory (B)": "8589934592"}, "system": {"Driver version": "6"}}`, []string{"GPU 0 memory used: 1 of 1.0 GiB to 1.0 GiB, of 16.0 GiB", "GPU 0 utilization: 1 of 12 % to 12 %", "GPU 10 memory used: 1 of 8.0 GiB to 8.0 GiB"}, "the file has no times: the axis counts samples"},
		"rocm-smi, CSV":        {"device,VRAM Total Memory (B),VRAM Total Used Memory (B),Card series\ncard0,17163091968,1073741824,Navi\ncard1,17163091968,2147483648,Navi\n", []string{"GPU 0 memory used: 1 of 1.0 GiB to 1.0 GiB, of 16.0 GiB", "GPU 1 memory used: 1 of 2.0 GiB to 2.0 GiB, of 16.0 GiB"}, "the file has no times: the axis counts samples"},
		"nvitop":               {`{"run/timestamp": 1790857026.5, "run/host/memory_used (GiB)/mean": 91, "run/cuda:0 (gpu:3)/memory_used (MiB)/mean": 100, "run/cuda:0 (gpu:3)/memory_used (MiB)/max": 200, "run/cuda:0 (gpu:3)/gpu_utilization (%)/mean": 5, "run/cuda:0 (gpu:3)/gpu_utilization (%)/max": 9, "run/pid:1/cuda:0 (gpu:3)/gpu_memory (MiB)/mean": 7}`, []string{"GPU 3 memory used: 1 of 200.0 MiB to 200.0 MiB", "GPU 3 utilization: 1 of 5 % to 5 %"}, ""},
		"memory timeline":      {"[[1790857026000000,1790857027000000],[[0,0,1024,0,0,0,0,0,0],[0,1048576,1048576,0,0,0,0,0,0]]]", []string{"GPU memory used: 2 of 1.0 KiB to 2.0 MiB"}, "the file does not say of which device it is; the line is the sum of all categories"},
		"raw memory timeline":  {"[[-1,1,512,0],[1790857026000000000,2,512,4],[1790857027000000000,4,-512,4]]", []string{"GPU memory used: 2 of 512 B to 1.0 KiB"}, "the file does not say of which device it is; the line is the sum of all categories"},
		"nvitop, CSV":          {"run/timestamp,run/gpu:0/memory_used (MiB)/max,run/gpu:1/memory_used (MiB)/max\n1790857026.5,100.5,200\n", []string{"GPU 0 memory used: 1 of 100.5 MiB to 100.5 MiB", "GPU 1 memory used: 1 of 200.0 MiB to 200.0 MiB"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			file := read(t, test.text, utc)
			assert.Equal(t, test.want, summary(file.Recording))
			if test.note == "" {
				assert.Empty(t, file.Notes)
			} else {
				assert.Contains(t, file.Notes, test.note)
			}
		})
	}
}

func inUTF16(text string) string {
	var b strings.Builder
	for _, unit := range append([]uint16{0xfeff}, utf16.Encode([]rune(text))...) {
		b.WriteByte(byte(unit))
		b.WriteByte(byte(unit >> 8))
	}
	return b.String()
}

// TestTurns: rows of several GPUs that no column identifies belong to them by turns.
func TestTurns(t *testing.T) {
	text := "timestamp, name, memory.used [MiB]\n"
	at := time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC)
	for i := range 20 {
		for gpu := range 3 {
			text += fmt.Sprintf("%s, NVIDIA H100, %d MiB\n", at.Add(time.Duration(i)*time.Second+time.Duration(gpu)*5*time.Millisecond).Format("2006/01/02 15:04:05.000"), 1000*gpu+i)
		}
	}
	assert.Equal(t, []string{"GPU 0 memory used: 20 of 0 B to 19.0 MiB", "GPU 1 memory used: 20 of 1000.0 MiB to 1019.0 MiB", "GPU 2 memory used: 20 of 2.0 GiB to 2.0 GiB"}, summary(read(t, text, utc).Recording))

	lone := "timestamp, name, memory.used [MiB]\n" // a stall does not make two GPUs
	for i := range 20 {
		stall := time.Duration(i/10) * 9 * time.Second
		lone += fmt.Sprintf("%s, NVIDIA H100, %d MiB\n", at.Add(time.Duration(i)*time.Second+stall).Format("2006/01/02 15:04:05.000"), i)
	}
	assert.Equal(t, []string{"GPU memory used: 20 of 0 B to 19.0 MiB"}, summary(read(t, lone, utc).Recording))

	names := "name, memory.used [MiB]\n" + strings.Repeat("NVIDIA A10, 1 MiB\nNVIDIA L4, 2 MiB\n", 3)
	assert.Equal(t, []string{"GPU 0 memory used: 3 of 1.0 MiB to 1.0 MiB", "GPU 1 memory used: 3 of 2.0 MiB to 2.0 MiB"}, summary(read(t, names, utc).Recording))
}

// TestOptions: what a file does not tell can be given.
func TestOptions(t *testing.T) {
	const bare = "100, 24564, 7\n200, 24564, 8\n"
	_, err := recordings.Read(strings.NewReader(bare), recordings.Config{})
	require.ErrorIs(t, err, recordings.ErrFormat)
	file := read(t, bare, recordings.Config{Columns: "memory.used,memory.total,utilization.gpu", Interval: 2 * time.Second})
	assert.Equal(t, []string{"GPU memory used: 2 of 100.0 MiB to 200.0 MiB, of 24.0 GiB", "GPU utilization: 2 of 7 % to 8 %"}, summary(file.Recording))
	assert.False(t, file.Recording.Numbered)
	assert.Equal(t, 2*time.Second, file.Recording.Duration())
	assert.Empty(t, file.Notes)

	_, err = recordings.Read(strings.NewReader(bare), recordings.Config{Columns: "a,b"})
	require.ErrorContains(t, err, `columns "a,b": none is a column of GPU memory`)

	_, err = recordings.Read(strings.NewReader("40 MiB, 20 MiB, 18 MiB\n40 MiB, 21 MiB, 17 MiB\n"), recordings.Config{})
	require.ErrorContains(t, err, "the file has no line with the names of its columns, and columns 1, 2, 3 are all amounts of memory: name them with --columns")

	berlin := time.FixedZone("", 3600)
	file = read(t, "timestamp, memory.used [MiB]\n2026/03/02 10:00:00.000, 1 MiB\n", recordings.Config{Location: berlin})
	assert.Equal(t, "2026-03-02 09:00:00 +0000 UTC", file.Recording.Start.UTC().String())
}

func TestRefused(t *testing.T) {
	for text, says := range map[string]string{
		"":                            "not a recording of GPU memory: the file is empty",
		"hello\n":                     "not a recording of GPU memory: it is none of nvidia-smi",
		"[1, 2]":                      "it is JSON, with a number where gpustat, nvitop, amd-smi and rocm-smi have an object",
		"[[1], [2]]":                  "it is a JSON list, but no memory timeline of PyTorch",
		"[[1,2],[[0,1],[0,2],[0,3]]]": "no memory timeline",
		`{"a": 1, `:                   "the file is torn",
		"<html>":                      "not a recording of GPU memory",
		"# gpu        pid  type    sm   mem   enc   dec   command\n# Idx          #   C/G     %     %     %     %   name\n    0       4711     C     5     5     -     -   python3\n": "this log of nvidia-smi pmon has no memory: add -s m",
		"timestamp, index, memory.used [MiB]\n2026/03/02 10:00:00.000, 0, 1 MiB\n2026/03/02 09:00:00.000, 0, 1 MiB\n":                                                                 "are these two recordings in one file?",
	} {
		_, err := recordings.Read(strings.NewReader(text), utc)
		require.ErrorContains(t, err, says, "%q", text)
	}
}

// TestPackedOwnAndJoined: a recording of package nvml is read too, packed or not, and stands beside others on one axis.
func TestPackedOwnAndJoined(t *testing.T) {
	own := `{"schema":"gpumemtrack.recording/1","start":"2026-03-02T10:00:02Z","devices":[{"index":0,"uuid":"GPU-a","name":"A"}]}` + "\n" + `{"time_seconds":1,"device":0,"memory_used_bytes":1048576}` + "\n"
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	_, err := zip.Write([]byte(own))
	require.NoError(t, err)
	require.NoError(t, zip.Close())
	file := read(t, packed.String(), utc)
	assert.Equal(t, "gpumemtrack record", file.Format)

	other, err := recordings.ReadFile(filepath.Join("testdata", "smi_units.csv"), utc)
	require.NoError(t, err)
	joined := nvml.Join([]string{"own.jsonl", "smi.csv"}, []nvml.Recording{file.Recording, other.Recording})
	assert.Equal(t, other.Recording.Start, joined.Start)
	assert.Equal(t, "own.jsonl GPU 0 memory used", joined.Series[0].Label())
	first, _ := joined.Series[0].Span()
	assert.Equal(t, 2493*time.Millisecond, first)

	later := other.Recording
	later.Start = later.Start.Add(24 * time.Hour)
	joined = nvml.Join([]string{"a", "b"}, []nvml.Recording{other.Recording, later})
	first, _ = joined.Series[len(joined.Series)-1].Span()
	assert.Zero(t, first, "runs of two days begin together")
	assert.True(t, joined.Start.IsZero())
}

// TestMemoryIsBounded: a long recording takes no more than its points.
func TestMemoryIsBounded(t *testing.T) {
	at := time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC)
	var b strings.Builder
	b.WriteString("timestamp, index, memory.used [MiB]\n")
	const samples = 50_000
	for i := range samples {
		fmt.Fprintf(&b, "%s, 0, %d MiB\n", at.Add(time.Duration(i)*time.Second).Format("2006/01/02 15:04:05.000"), i%1000)
	}
	s := read(t, b.String(), utc).Recording.Series[0]
	points := 0
	for range s.Points() {
		points++
	}
	assert.Equal(t, samples, s.Len())
	assert.Less(t, points, 2*4096+1)
	assert.InDelta(t, 999*float64(1<<20), s.Max(), 0)

	var many strings.Builder
	many.WriteString("index, memory.used [MiB]\n")
	for i := range 1000 {
		fmt.Fprintf(&many, "%d, 1 MiB\n", i)
	}
	_, err := recordings.Read(strings.NewReader(many.String()), utc)
	require.ErrorIs(t, err, nvml.ErrTooMany)
}

// FuzzRead: no text ends the program, and no value is one that a device cannot have.
func FuzzRead(f *testing.F) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.*"))
	require.NoError(f, err)
	for _, name := range files {
		text, err := os.ReadFile(name)
		require.NoError(f, err)
		f.Add(text)
	}
	for _, text := range []string{
		"timestamp, index, memory.used [MiB]\n2026/03/02 10:00:00.000, 0, 1 MiB\n", "40 MiB, 20 MiB, 18 MiB\n", "# gpu fb\n0 1\n",
		"index, memory.used [MiB]\n0, " + strings.Repeat("9", 400) + " MiB\n0, 1e999 MiB\n0, 5 parsec\n0, \x1b[31m\x00\n",
		`{"card0": {"VRAM Total Used Memory (B)": "` + strings.Repeat("9", 400) + `"}}`, `[{"gpu":0,"used_vram":{"value":{"value":1}}}]`, `{"a/gpu:0/memory_used (MiB)/max":1}`, "[[100,200],[[0,0],[0,512]]]", "[[-1,1,5,0],[5,4,-5,0]]",
		"\xff\xfei\x00", "\xfe\xff\x00i", "<nvidia_smi_log><gpu><gpu><gpu></gpu>", "\"memory.used [MiB]\",index\n\"1 MiB\n\",0\n", "GPU-0123456789, 00000000:01:00.0, 5 MiB\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		file, err := recordings.Read(bytes.NewReader(text), utc)
		if err != nil {
			return
		}
		for _, s := range file.Recording.Series {
			if s.Len() > 0 && (s.Min() > s.Max() || s.Min() < 0 && s.Quantity != nvml.Temperature) {
				t.Errorf("%v", s)
			}
		}
	})
}
