package hostile_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"strings"
)

// file is a hostile file: its name, which tells the program what it is said to be, and what it holds.
type file struct {
	name string
	make func() []byte
}

// text returns what makes a text.
func text(s string) func() []byte { return func() []byte { return []byte(s) } }

// times returns what makes a text whose middle is repeated.
func times(begin, middle string, n int, end string) func() []byte {
	return func() []byte { return []byte(begin + strings.Repeat(middle, n) + end) }
}

// packed returns what makes a gzip of a text whose middle is repeated.
func packed(begin, middle string, n int, end string) func() []byte {
	return func() []byte {
		var b bytes.Buffer
		zip, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed)
		zip.Write([]byte(begin))
		part := []byte(strings.Repeat(middle, max(1, 1<<16/len(middle))))
		for left := n * len(middle); left > 0; left -= len(part) {
			zip.Write(part[:min(left, len(part))])
		}
		zip.Write([]byte(end))
		zip.Close()
		return b.Bytes()
	}
}

// The opcodes of a pickle: a string, a segment up to its blocks, and a block.
func word(s string) string { return fmt.Sprintf("\x8c%c%s", len(s), s) }

func long(s string) string {
	return "X" + string(binary.LittleEndian.AppendUint32(nil, uint32(len(s)))) + s
}

var (
	segment = "}(" + word("segments") + "](}(" + word("device") + "K\x00" + word("address") + "K\x00" + word("total_size") + "J\x00\x00\x20\x00" + word("blocks") + "]("
	closed  = "eueu."
	block   = "}(" + word("size") + "J\x00\x02\x00\x00" + word("state") + word("active_allocated") + word("frames") + "]("
)

func traced(events string) string {
	return "\x80\x04}(" + word("segments") + "]" + word("device_traces") + "](](" + events + "eeu."
}

// sharedNames is a snapshot of blocks whose lines share two long names.
func sharedNames(length, blocks int) func() []byte {
	return func() []byte {
		var b bytes.Buffer
		b.WriteString("\x80\x04" + long(strings.Repeat("A", length)) + "q\x000" + long(strings.Repeat("B", length)) + "q\x010" + segment)
		for i := range blocks {
			fmt.Fprintf(&b, "%s}(%sh\x00%sh\x01%sJ%sueu", block, word("filename"), word("name"), word("line"), binary.LittleEndian.AppendUint32(nil, uint32(i)))
		}
		b.WriteString(closed)
		return b.Bytes()
	}
}

var pickles = []file{
	{"deep lists", times("\x80\x04", "](", 1<<20, "")},
	{"deep tuples", times("\x80\x04N", "\x85", 1<<20, ".")},
	{"deep dicts", times("\x80\x04", "}(K\x00", 1<<20, "")},
	{"lists in itself", times("\x80\x04]q\x00", "h\x00a", 1<<18, ".")},
	{"a dict in itself", text("\x80\x04}q\x00(" + word("segments") + "h\x00u.")},
	{"lists that double", times("\x80\x04]q\x00", "](h\x00h\x00eq\x00", 1<<16, ".")},
	{"memos", times("\x80\x04N", "\x94", 1<<22, ".")},
	{"far memos", times("\x80\x04N", "r\xff\xff\xff\xff", 1<<20, ".")},
	{"a memo that is not there", text("\x80\x04h\x05.")},
	{"marks", times("\x80\x04", "(", 1<<22, "")},
	{"values that wait", times("\x80\x04(", "N", 1<<23, "")},
	{"a long list", times("\x80\x04](", "N", 1<<23, "e.")},
	{"small lists", times("\x80\x04](", "]", 1<<22, "e.")},
	{"small dicts", times("\x80\x04](", "}", 1<<22, "e.")},
	{"many keys", func() []byte {
		var b bytes.Buffer
		b.WriteString("\x80\x04}(")
		for i := range 1 << 18 {
			b.WriteString(word(fmt.Sprint(i)) + "N")
		}
		b.WriteString("u.")
		return b.Bytes()
	}},
	{"many shapes", func() []byte {
		var b bytes.Buffer
		b.WriteString("\x80\x04](")
		for i := range 1 << 17 {
			b.WriteString("}(" + word(fmt.Sprint(i)) + "Nu")
		}
		b.WriteString("e.")
		return b.Bytes()
	}},
	{"a string that says it is huge", text("\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc")},
	{"a long integer", text("\x80\x04\x8b\xff\xff\xff\x7f1")},
	{"a long line", times("(I", "1", 1<<25, "\n.")},
	{"a pickle that runs code", text("cos\nsystem\n(S'echo hostile'\ntR.")},
	{"a pickle that builds objects", text("\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.")},
	{"torn pickle", text("\x80\x04" + segment + block)},
	{"protocol 99", text("\x80\x63}.")},
	{"shared long names", sharedNames(1<<16, 4096)},
	{"very long names", sharedNames(1<<20, 4096)},
	{"segments is a number", text("\x80\x04}" + word("segments") + "K\x01s.")},
	{"a huge segment", text("\x80\x04}(" + word("segments") + "](}(" + word("device") + "K\x00" + word("address") + "\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x7f" +
		word("total_size") + "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f" + word("blocks") + "](}(" + word("size") + "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fuueueu.")},
	{"device 2^62", text("\x80\x04}(" + word("segments") + "](}(" + word("device") + "\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x40" + word("address") + "K\x00" + word("blocks") + "]ueu.")},
	{"many streams", func() []byte {
		var b bytes.Buffer
		for i := range 60_000 {
			n := string(binary.LittleEndian.AppendUint32(nil, uint32(i)))
			fmt.Fprintf(&b, "}(%s%s%sJ%s%sJ\x00\x02\x00\x00%sJ%su", word("action"), word("alloc"), word("addr"), n, word("size"), word("stream"), n)
		}
		return []byte(traced(b.String()))
	}},
	{"sizes that overflow", text(traced(strings.Repeat("}("+word("action")+word("alloc")+word("addr")+"K\x00"+word("size")+"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7fu", 1000)))},
	{"caches emptied over and over", func() []byte {
		var b bytes.Buffer
		for i := range 20_000 {
			n := string(binary.LittleEndian.AppendUint32(nil, uint32(i<<12)))
			action := "segment_alloc"
			if i%2 == 1 {
				action = "segment_free"
			}
			fmt.Fprintf(&b, "}(%s%s%sJ%s%sJ\x00\x00\x20\x00%sK\x00u", word("action"), word(action), word("addr"), n, word("size"), word("stream"))
		}
		return []byte(traced(b.String()))
	}},
	{"blocks that begin below 0", text("\x80\x04" + strings.Replace(segment, "K\x00"+word("total"), "J\xff\xff\xff\xff"+word("total"), 1) + block + closed)},
	{"many traces", times("\x80\x04}("+word("segments")+"]"+word("device_traces")+"](", "]", 1<<20, "eu.")},
}

var gzips = []file{
	{"zeros", packed("", "\x00", 1<<28, "")},
	{"brackets", packed("\x80\x04", "]", 1<<28, "")},
	{"spaces", packed("", " ", 1<<28, "{}")},
	{"JSON that unpacks", packed(`{"segments":[`, "0,", 1<<27, "0]}")},
	{"a profile that unpacks", packed("\x0a\x04\x08\x01\x10\x02", "\x12\x00", 1<<27, "")},
	{"gzip in gzip", func() []byte { return gzipOf(gzipOf(packed("\x80\x04", "]", 1<<26, "")())) }},
	{"torn gzip", func() []byte { b := packed("{", " ", 1<<20, "}")(); return b[:len(b)/2] }},
	{"wrong sum", func() []byte { b := packed("{", " ", 1<<10, "}")(); b[len(b)-6] ^= 1; return b }},
	{"a gzip of nothing", packed("", " ", 0, "")},
}

func gzipOf(b []byte) []byte { return packed(string(b), " ", 0, "")() }

// The parts of a profile: a field of bytes, and one of a number.
func field(n int, inside string) string {
	return string(binary.AppendUvarint([]byte{byte(n<<3 | 2)}, uint64(len(inside)))) + inside
}

func number(n int, value uint64) string {
	return string(binary.AppendUvarint([]byte{byte(n << 3)}, value))
}

func profile(name string) string {
	types := field(1, number(1, 1)+number(2, 2)) + field(1, number(1, 3)+number(2, 4))
	for _, s := range []string{"", "inuse_objects", "count", "inuse_space", "bytes", name} {
		types += field(6, s)
	}
	return types + field(5, number(1, 1)+number(2, 5)+number(4, 5)) + field(4, number(1, 1)+field(4, number(1, 1)+number(2, 1)))
}

var profiles = []file{
	{"samples", times(profile("f"), field(2, field(1, "\x01")+field(2, "\x01\x01")), 1<<22, "")},
	{"empty samples", times(profile("f"), field(2, ""), 1<<24, "")},
	{"long stacks", times(profile("f"), field(2, field(1, strings.Repeat("\x01", 1<<20))+field(2, "\x01\x01")), 64, "")},
	{"lines that share long names", func() []byte {
		var b bytes.Buffer
		b.WriteString(profile(strings.Repeat("N", 1<<16)))
		for i := range uint64(1 << 16) {
			b.WriteString(field(4, number(1, i+2)+field(4, number(1, 1)+number(2, i))))
			b.WriteString(field(2, field(1, string(binary.AppendUvarint(nil, i+2)))+field(2, "\x01\x01")))
		}
		return b.Bytes()
	}},
	{"a field without an end", text("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f")},
}

const snapshotHead = `{"schema":"gpumemtrack.snapshot","version":1,`

var jsons = []file{
	{"a long string", times(`{"a":"`, "A", 1<<28, `"}`)},
	{"a long string in a snapshot of PyTorch", times(`{"segments":[],"a":"`, "A", 1<<27, `"}`)},
	{"a long string in a snapshot", times(snapshotHead+`"a":"`, "A", 1<<27, `"}`)},
	{"frames", func() []byte {
		var b bytes.Buffer
		b.WriteString(`{"segments":[{"device":0,"address":0,"total_size":2097152,"blocks":[{"size":2097152,"state":"active_allocated","frames":[`)
		for i := range 1 << 20 {
			fmt.Fprintf(&b, `{"filename":"a/%d.py","line":%d,"name":"f%d"},`, i, i, i)
		}
		b.WriteString(`{}]}]}]}`)
		return b.Bytes()
	}},
	{"deep JSON", times(`{"segments":`, "[", 1<<22, "")},
	{"deep objects", times(`{"segments":`, `{"a":`, 1<<20, "")},
	{"torn JSON", text(`{"a":[1,2`)},
	{"numbers", times(`{"segments":[`, "1e9999,", 1<<20, "0]}")},
	{"stacks of one frame", times(snapshotHead+`"frames":[{"function":"f"}],"stacks":[`, "["+strings.Repeat("0,", 1000)+"0],", 1<<12, "[]]}")},
	{"not UTF-8", times(`{"segments":[],"a":"`, "\xff", 1<<16, `"}`)},
}

// headed is a safetensors file with this header.
func headed(length uint64, header string, data int) func() []byte {
	return func() []byte {
		return append(append(binary.LittleEndian.AppendUint64(nil, length), header...), make([]byte, data)...)
	}
}

func tensors(n int) func() []byte {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"t%d":{"dtype":"F32","shape":[1],"data_offsets":[%d,%d]}`, i, 4*i, 4*i+4)
	}
	header := "{" + b.String()[1:] + "}"
	return headed(uint64(len(header)), header, 4*n)
}

var safetensors = []file{
	{"a header of 2^63 bytes.safetensors", headed(1<<63-1, "{}", 0)},
	{"a torn header.safetensors", headed(100, `{"a":`, 0)},
	{"many tensors.safetensors", func() []byte { return tensors(900_000)() }},
	{"deep header.safetensors", func() []byte { h := strings.Repeat(`{"a":`, 1<<20); return headed(uint64(len(h)), h, 0)() }},
	{"a shape that overflows.safetensors", func() []byte {
		h := `{"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`
		return headed(uint64(len(h)), h, 0)()
	}},
	{"offsets that lie.safetensors", func() []byte {
		h := `{"w":{"dtype":"F32","shape":[1],"data_offsets":[9223372036854775803,9223372036854775807]}}`
		return headed(uint64(len(h)), h, 4)()
	}},
}

// gguf is a file with these numbers of tensors and keys.
func gguf(tensors, keys uint64, rest string) func() []byte {
	return func() []byte {
		b := binary.LittleEndian.AppendUint32([]byte("GGUF"), 3)
		return append(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, tensors), keys), rest...)
	}
}

func sized(n uint64) string { return string(binary.LittleEndian.AppendUint64(nil, n)) }

var ggufs = []file{
	{"tensors that are not there.gguf", gguf(1<<62, 0, "")},
	{"keys that are not there.gguf", gguf(0, 1<<62, "")},
	{"a key of 2^63 bytes.gguf", gguf(0, 1, sized(1<<63-1))},
	{"a text of 2^62 bytes.gguf", gguf(0, 1, sized(1)+"a\x08\x00\x00\x00"+sized(1<<62))},
	{"an array of 2^62.gguf", gguf(0, 1, sized(1)+"a\x09\x00\x00\x00\x04\x00\x00\x00"+sized(1<<62))},
	{"arrays in arrays.gguf", gguf(0, 1, sized(1)+"a\x09\x00\x00\x00"+strings.Repeat("\x09\x00\x00\x00"+sized(1), 1<<18))},
	{"a tensor of 2^62 dimensions.gguf", gguf(1, 0, sized(1)+"w\xff\xff\xff\xff")},
	{"version 99.gguf", text("GGUF\x63\x00\x00\x00")},
}

// config is a config.json with these settings of a model.
func config(settings string) func() []byte {
	return text(`{"model_type":"llama","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":2,"vocab_size":100,"intermediate_size":64,` + settings + `}`)
}

var configs = []file{
	{"a billion layers/config.json", config(`"num_hidden_layers":1000000000`)},
	{"2^62 layers/config.json", config(`"num_hidden_layers":4611686018427387904`)},
	{"no layers/config.json", config(`"num_hidden_layers":-1`)},
	{"no heads/config.json", config(`"num_attention_heads":0`)},
	{"words for numbers/config.json", config(`"hidden_size":"a lot"`)},
	{"huge numbers/config.json", config(`"hidden_size":1e300`)},
	{"sizes that overflow/config.json", config(`"vocab_size":9223372036854775807,"hidden_size":9223372036854775807`)},
	{"experts/config.json", text(`{"model_type":"mixtral","hidden_size":64,"num_hidden_layers":2,"num_attention_heads":2,"vocab_size":100,"intermediate_size":64,"num_local_experts":1000000000}`)},
	{"deep/config.json", times(`{"model_type":`, "[", 1<<20, "")},
	{"a long type/config.json", times(`{"model_type":"`, "m", 1<<22, `"}`)},
}

var recordings = []file{
	{"no header.csv", times("", "1,2,3\n", 1<<20, "")},
	{"a long line.csv", times("time_seconds,gpu,", "a", 1<<26, "\n")},
	{"many columns.csv", times("time_seconds,gpu", ",a", 1<<22, "\n1\n")},
	{"an endless line of nvidia-smi.csv", times("index, memory.used [MiB]\n0, ", "9", 1<<28, " MiB\n")},
	{"a million GPUs.csv", func() []byte {
		var b bytes.Buffer
		b.WriteString("index, memory.used [MiB]\n")
		for i := range 1 << 20 {
			fmt.Fprintf(&b, "%d, 1 MiB\n", i)
		}
		return b.Bytes()
	}},
	{"a million processes.csv", func() []byte {
		var b bytes.Buffer
		b.WriteString("pid, used_gpu_memory [MiB]\n")
		for i := range 1 << 20 {
			fmt.Fprintf(&b, "%d, 1 MiB\n", i+1)
		}
		return b.Bytes()
	}},
	{"headers alone.csv", times("", "index, memory.used [MiB]\nmemory.used [MiB], index\n", 1<<18, "")},
	{"columns of nvidia-smi.csv", times("memory.used [MiB]", ", memory.used [MiB]", 1<<20, "\n1 MiB\n")},
	{"rows that are kept.csv", times("memory.used [MiB], name\n", "1 MiB, "+strings.Repeat("n", 1<<18)+"\n", 1<<9, "")},
	{"control characters.csv", times("index, memory.used [MiB]\n", "0, \x1b]0;x\x07 MiB\n\x00\x01\n", 1<<18, "0, 1 MiB\n")},
	{"numbers of 400 digits.csv", times("index, memory.used [MiB]\n", "0, "+strings.Repeat("9", 400)+" MiB\n", 1<<16, "0, 1 MiB\n")},
	{"units that do not exist.csv", times("index, memory.used [furlong]\n", "0, 1\n", 1<<20, "")},
	{"a tag without an end.xml", times("<nvidia_smi_log", " a", 1<<27, "")},
	{"deep elements.xml", times("<nvidia_smi_log>", "<gpu>", 1<<24, "")},
	{"GPUs without an end.xml", times("<nvidia_smi_log>", "<gpu><fb_memory_usage><used>1 MiB</used></fb_memory_usage></gpu>", 1<<20, "")},
	{"entities.xml", times("<nvidia_smi_log><gpu>", "&lt;", 1<<26, "</gpu>")},
	{"deep values.json", times(`{"gpus":`, "[", 1<<24, "")},
	{"one long value.json", times(`{"gpus":[`, `{"index":0},`, 1<<24, `{}]}`)},
	{"GPUs of gpustat.json", times(`{"query_time":"","gpus":[`, `{"index":0,"memory.used":1},`, 1<<18, `{}]}`)},
	{"many values.json", times("", `{"card0":{"VRAM Total Used Memory (B)":"1e400"}}`, 1<<18, "")},
	{"a long timeline.json", times("[[1", ",1", 1<<23, "],[[0]]]")},
	{"sizes of a timeline.json", times("[[1],[", "[0,1],", 1<<20, "[0]]]")},
	{"a deep timeline.json", times("[[1]", ",[[[", 1<<20, "")},
	{"UTF-16.csv", times("\xff\xfe", "\x00\xd8", 1<<26, "")},
}

// inLog is the beginning of a line of an allocator's log.
const inLog = "I bfc_allocator.cc:1] "

var logs = []file{
	{"chunks", times("", inLog+"InUse at 100 of size 256 next 1\n", 1<<22, "")},
	{"regions", times("", inLog+"Next region of size 9223372036854775807\n", 1<<20, "")},
	{"failures", times("", inLog+"Allocator (a) ran out of memory trying to allocate 1B\n", 1<<22, "")},
	{"sizes", func() []byte {
		var b bytes.Buffer
		for i := range 1 << 20 {
			fmt.Fprintf(&b, "%s%d Chunks of size %d totalling 1B\n", inLog, int64(1<<62), i+1)
		}
		return b.Bytes()
	}},
	{"a line without an end", times("Allocator (", "a", 1<<28, "")},
	{"names", func() []byte {
		var b bytes.Buffer
		for i := range 1 << 13 {
			fmt.Fprintf(&b, "%sInUse at %x of size 256 by op %d%s next 1\n", inLog, i<<8, i, strings.Repeat("n", 1<<13))
		}
		return b.Bytes()
	}},
	{"carriage returns", times("bfc_", "\r", 1<<26, "")},
	{"allocations of XLA", times("BufferAssignment:\n", "allocation 0: size 9, preallocated-temp:\n value: <1 a @0> (size=1,offset=0): f32[]\n", 1<<19, "")},
	{"a module of XLA without an end", times("HloModule a, ", "metadata={op_name=\"", 1<<22, "")},
	{"what is live in XLA", times("HloLiveRange (max 1):\n  Live ranges at 1 (peak):\n", "    a{}: 99999999999999999999 bytes\n    b{}: 9 bytes\n", 1<<20, "")},
	{"engines of a million ranks", func() []byte {
		var b bytes.Buffer
		for i := range 1 << 20 {
			fmt.Fprintf(&b, "(Worker_TP%d pid=%d) INFO [x.py:1] Model loading took 5.0 GiB and 1 seconds\n", i, i)
		}
		return b.Bytes()
	}},
	{"an engine's line without an end", times("Model loading took ", "9", 1<<28, " GiB")},
	{"an engine's words without an end", times("KV buffer size = ", "Model loading took KV buffer size = ", 1<<19, "")},
	{"engines of sizes that do not exist", times("", "llama_kv_cache: CUDA0 KV buffer size = "+strings.Repeat("9", 400)+" QiB\nModel loading took -1e999 GiB\n", 1<<12, "")},
	{"engines of control characters", times("Model loading took 5.0 GiB and", "\x1b[31m\x07\x00", 1<<20, "\n")},
}

// failed is the message of PyTorch, about a request of so much.
func failed(requested string) string {
	return "CUDA out of memory. Tried to allocate " + requested + ". GPU 0 has a total capacity of 80.00 GiB of which 1.00 MiB is free. Of the allocated memory " +
		requested + " is allocated by PyTorch, and " + requested + " is reserved by PyTorch but unallocated.\n"
}

var errorTexts = []file{
	{"a million ranks", func() []byte {
		var b bytes.Buffer
		for i := range 1 << 20 {
			fmt.Fprintf(&b, "[rank%d]: %s", i, failed(fmt.Sprintf("%d.00 MiB", i)))
		}
		return b.Bytes()
	}},
	{"the same over and over", times("", failed("2.00 GiB"), 1<<18, "")},
	{"a gigabyte line", times("CUDA out of memory. Tried to allocate ", "0123456789abcdef", 1<<26, " GiB")},
	{"errors in a line without an end", times("", "CUDA out of memory. Tried to allocate 1.00 GiB. ", 1<<19, "")},
	{"control characters", times(failed("2.00 GiB"), "\x1b[31m\x00\x07\x9b CUDA out of memory. Tried to allocate \x1b]0;title\x07 2 GiB\n", 1<<16, "")},
	{"numbers of 400 digits", times("", failed(strings.Repeat("9", 400)+" GiB"), 1<<10, "")},
	{"units that do not exist", text(failed("2.00 QiB") + failed("2.00 GiBs") + failed("-2.00 GiB") + failed("NaN GiB") + failed("1e308 TiB"))},
	{"processes", times("CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 1.00 MiB is free. ", "Process 99999999999999999999 has 5.00 GiB memory in use. ", 1<<20, "\n")},
	{"not UTF-8", times(failed("2.00 GiB"), "CUDA out of memory. Tried to allocate \xff\xfe\xf0\x9f 2 GiB\n", 1<<16, "")},
	{"statistics", times("", "| PyTorch CUDA memory summary, device ID 0 |\n| Allocated memory | 9999999999999999999999 MiB | 1 MiB | 1 MiB |\n", 1<<18, "")},
	{"numbers of statistics", times(`{"allocated_bytes.all.current": `, "9", 1<<20, "}")},
	{"allocations of a TPU", times("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 9.00G of 8.00G hbm. Exceeded hbm capacity by 1.00G.\n", "1. Size: 2.00G\n Operator: op_name=\"a\" source_file=\"b\" source_line=3\n Shape: f32[1]\n", 1<<18, "")},
	{"shapes", times("", "OOM when allocating tensor with shape["+strings.Repeat("999999999,", 90)+"1] and type float\n", 1<<16, "")},
	{"lines of ggml", times("", "ggml_backend: allocating 1.00 MiB on device 0: cudaMalloc failed: out of memory\n", 1<<18, "")},
}

// beginnings of inputs that are of no kind, or end too early.
var unknowns = []file{
	{"bytes", times("", "\x00\xff", 1<<16, "")},
	{"a text", times("", "nothing here\n", 1<<22, "")},
	{"an open object", times(`{"a":`, `{"b":`, 1<<20, "")},
	{"an open list", times(`[`, "[", 1<<20, "")},
	{"keys", times("{", `"k":1,`, 1<<20, "}")},
}
