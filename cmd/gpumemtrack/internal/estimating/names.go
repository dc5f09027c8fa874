package estimating

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
)

// listCommand is gpumemtrack estimate list.
func listCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "list [WORD]...",
		Short:   "List the models that are known by name, with their sizes",
		Long:    "List the models that are known by name, with the size of their published\nweights. With words, list those whose names have all of them.",
		Example: "  gpumemtrack estimate list qwen 7b",
		RunE: func(_ *cobra.Command, words []string) error {
			t := cli.NewTable(a.Stdout, 1, "Name", "Parameters", "Weights", "Type")
			names := slices.DeleteFunc(zoo.Names(), func(name string) bool {
				return slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(name, strings.ToLower(w)) })
			})
			if len(names) == 0 {
				return fmt.Errorf("no model that is known by name has %s in it", strings.Join(words, " and "))
			}
			for _, name := range names {
				m, err := zoo.ByName(name)
				if err != nil {
					return err
				}
				t.AppendRow(table.Row{name, inThousands(m.Params), alloc.Bytes(m.Params * int64(m.DType.Bits()) / 8), m.DType})
			}
			t.Render()
			return nil
		},
	}
}

// inThousands prints a number of parameters with a unit: 8.03 B.
func inThousands(n int64) string {
	units := []string{"", " K", " M", " B", " T"}
	v, unit := float64(n), 0
	for v >= 1000 && unit < len(units)-1 {
		v, unit = v/1000, unit+1
	}
	return strconv.FormatFloat(v, 'f', min(unit, 2), 64) + units[unit]
}

// fileEndings lists the endings of files that hold models.
var fileEndings = []string{".gguf", ".safetensors", ".json", ".bin", ".pt", ".pth", ".onnx"}

// quantizations lists words in names of repositories with quantized weights, and the flags that
// mean the same.
var quantizations = []struct{ word, flags string }{
	{"awq", "--quantize awq"}, {"gptq", "--quantize gptq"}, {"4bit", "--quantize nf4"}, {"8bit", "--quantize int8"}, {"int8", "--quantize int8"},
	{"gguf", "--engine llama.cpp, or the name of the GGUF file"},
}

// unknown returns the error for a name that is neither a file nor a model. It says what the user
// may have meant.
func unknown(name string) error {
	lower := strings.ToLower(name)
	if slices.Contains(fileEndings, filepath.Ext(lower)) || strings.HasPrefix(name, "/") || strings.HasPrefix(name, ".") {
		return fmt.Errorf("%s: there is no such file", name)
	}
	similar := zoo.Similar(name)
	if len(similar) == 0 {
		return fmt.Errorf("%s is no file here, and no model that is known by name: `gpumemtrack estimate list` prints those; of any other give the config.json", name)
	}
	for _, q := range quantizations {
		if strings.Contains(lower, q.word) {
			return fmt.Errorf("%s is not known by name: did you mean %s with %s?", name, similar[0], q.flags)
		}
	}
	return fmt.Errorf("%s is not known by name: did you mean %s? Of any other model give the config.json", name, strings.Join(similar, ", "))
}
