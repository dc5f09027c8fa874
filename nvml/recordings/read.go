// Package recordings reads what other tools print of GPU memory over time, as recordings of package
// nvml. It reads the recordings of package nvml too:
//
//	file, err := recordings.ReadFile("gpu.csv", recordings.Config{})
//	for _, s := range file.Recording.Series {
//		fmt.Println(s.Label(), s.Quantity.Format(s.Max())) // GPU 0 memory used 17.5 GiB
//	}
//
// Files are recognised by their contents, not by their names, and may be packed by gzip. A file may
// still grow: what of its last line is missing is not read.
//
// # What is read
//
//   - nvidia-smi --query-gpu and --query-compute-apps with --format=csv: columns by their names, in
//     any order; units in the header, in the cells, or in neither. Headers may repeat, and a file may
//     have several tables. Without a header, columns are found by their shape: see Config.Columns.
//     The names are those of nvidia-smi --help-query-gpu, drivers 319 to 610.
//   - nvidia-smi without options: its table, once or in a loop (-l, watch), since driver 361.
//   - nvidia-smi -q -x: one document, or several one after the other (-l, or >> in a loop). DTDs
//     nvsmi_device_v4 to v12.
//   - nvidia-smi dmon and pmon, with the options -o D, T and DT, and --format csv.
//   - amd-smi metric and monitor, --csv and --json (ROCm 5.7 to 7); rocm-smi --showmeminfo and others,
//     --csv and --json (ROCm 4 to 7).
//   - gpustat --json (0.4 to 1.1), and what nvitop's ResourceMetricCollector (0.10 to 1.7) collects, as
//     JSON lines or as CSV.
//   - the files of PyTorch's Profiler.export_memory_timeline, .json and .raw.json.gz (2.1 and later), as the sum of all
//     categories. They do not name their device.
//
// Lines between those of a table, such as other output of a program, are left out and counted.
//
// # What values mean
//
// nvidia-smi, amd-smi and their kin write "MB" for units of 2^20 bytes. So MB, MiB and M are one unit here,
// and likewise KB and GB. Cells such as [N/A], [Not Supported] and - are gaps. An unknown unit makes a
// gap as well, and File.Notes says so. For memory, nvitop's largest value in each interval counts; for other
// quantities its mean.
//
// Times without a zone are local ones: set Config.Location if a file is from elsewhere. A file without
// times is counted by samples: see nvml.Recording.Numbered. If no column identifies the GPU, rows of one
// moment belong to GPUs 0, 1 and so on, in the order of nvidia-smi.
//
// # Bounds
//
// Memory does not grow with the file: a series has as many points as that of an nvml.Recorder, and a line
// counts up to 1 MiB. A file with more than 256 GPUs or 256 processes is an error.
package recordings

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/userfile"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// largest bounds the text of a file: a year of eight GPUs at five samples a second.
const largest = 1 << 40

// headSize is how much of a file its format is recognised by.
const headSize = 1 << 14

// ReadFile reads a recording from a file. The error names the file. It is ErrFormat, or says what is
// wrong in which line.
func ReadFile(name string, o Config) (*File, error) {
	f, err := userfile.Open(name)
	if err != nil {
		return nil, fmt.Errorf("reading a recording: %w", err)
	}
	defer f.Close()
	file, err := Read(f, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return file, nil
}

// Read reads a recording as ReadFile does, from any reader, such as a pipe. The errors are those of ReadFile, without the name.
func Read(r io.Reader, o Config) (*File, error) {
	unpacked, err := bounded.NewReader(r, largest)
	if err != nil {
		return nil, err
	}
	in := bufio.NewReaderSize(unpacked, maxLine)
	if err := skipMark(in); err != nil {
		return nil, bounded.Torn(err)
	}
	head, err := in.Peek(headSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, bounded.Torn(err)
	}
	if len(bytes.TrimSpace(head)) == 0 {
		return nil, fmt.Errorf("%w: the file is empty", ErrFormat)
	}
	if isOwn(head) {
		rec, err := nvml.Read(in)
		if err != nil {
			return nil, err
		}
		return &File{Recording: rec, Format: "gpumemtrack record"}, nil
	}
	f := newFeed(o)
	switch bytes.TrimLeft(head, " \t\r\n")[0] {
	case '<':
		err = readXML(in, f)
	case '{', '[':
		err = readJSON(in, f)
	default:
		err = readTables(in, f)
	}
	if err != nil {
		return nil, bounded.Torn(err)
	}
	return f.file()
}

func isOwn(head []byte) bool {
	line, _, _ := bytes.Cut(head, []byte("\n"))
	return bytes.HasPrefix(line, []byte("{")) && bytes.Contains(line, []byte(`"gpumemtrack.recording/`)) || bytes.HasPrefix(line, []byte("time_seconds,gpu,"))
}

// skipMark skips the byte order mark of UTF-8.
func skipMark(in *bufio.Reader) error {
	mark, err := in.Peek(3)
	if bytes.HasPrefix(mark, []byte{0xef, 0xbb, 0xbf}) {
		_, err = in.Discard(len(mark))
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
