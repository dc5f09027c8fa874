package inputs

import (
	"fmt"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// chapters are the kinds that commands read, in the order of the help page: what most people have stands first.
var chapters = []struct {
	title string
	kinds []*Kind
}{
	{"Errors and logs", []*Kind{ErrorText, EngineLog, PyTorchStats, BFC}},
	{"Snapshots, traces and histories", []*Kind{PyTorchSnapshot, Kineto, MemoryTimeline, RMM, XLADump, Profile}},
	{"Recordings of GPUs over time", []*Kind{NvidiaSMI, AMDSMI, ROCmSMI, Nvitop, Gpustat}},
	{"Models", []*Kind{ModelConfig, Safetensors, GGUF, TorchSave, TorchDistributed}},
	{"What gpumemtrack writes", []*Kind{Dump, Snapshot, Recording}},
}

// Help lists the kinds, for people: what each is, what writes it, and which commands read it. No line is wider than 80
// columns.
func Help() string {
	var b strings.Builder
	b.WriteString(text.Wrap("The content of a file decides its kind, not its name. gzip, zstd, bzip2 and zip of one file are unpacked, UTF-16 is read, and - is standard input. "+
		"--as KIND overrides the kind. The commands that read a kind stand in brackets.", 80, "", ""))
	for _, c := range chapters {
		fmt.Fprintf(&b, "\n%s:\n", c.title)
		for _, k := range c.kinds {
			b.WriteString(text.Wrap(fmt.Sprintf("%s, from %s [%s]", k.What, k.Source, strings.Join(k.Takes, ", ")), 80, fmt.Sprintf("  %-17s ", k.Name), strings.Repeat(" ", 20)))
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}
