package estimating

import (
	"encoding/json"
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
	var limit alloc.Bytes
	var gpu, typed string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list [WORD]...",
		Short: "List the models that are known by name, with their sizes",
		Long:  "List the models that are known by name, with the size of their published\nweights: families together, and of each the smallest first. With words, list\nthose whose names or families have all of them.",
		Example: `  gpumemtrack estimate list qwen 7b
  gpumemtrack estimate list qwen3_moe --fits 80GiB`,
		RunE: func(_ *cobra.Command, words []string) error {
			var models []listedModel
			t := cli.NewTable(a.Stdout, 3, "Name", "Family", "Published as", "Parameters", "Weights")
			listed, all := 0, zoo.Names()
			for _, name := range all {
				m, err := zoo.ByName(name)
				if err != nil {
					return err
				}
				family, published := familyOf(m), m.Published()
				if !hasWords(name+" "+family, words) || limit > 0 && published.Bytes > limit {
					continue
				}
				listed++
				models = append(models, listedModel{name, family, published.Types, m.Params, published.Bytes})
				t.AppendRow(table.Row{name, family, published.Types, inThousands(m.Params), published.Bytes})
			}
			if listed == 0 {
				return fmt.Errorf("none of the %d models that are known by name is one of %s", len(all), strings.TrimSpace(strings.Join(append(words, typed), " ")))
			}
			if asJSON {
				return json.NewEncoder(a.Stdout).Encode(struct {
					Schema string        `json:"schema"`
					Models []listedModel `json:"models"`
				}{listSchema, models})
			}
			t.Render()
			if listed == len(all) {
				fmt.Fprintf(a.Stdout, "%d models. Words filter by name and family: list qwen 7b; --fits SIZE by weights: list --fits 24GiB.\n", listed)
			} else {
				fmt.Fprintf(a.Stdout, "%d of %d models.\n", listed, len(all))
			}
			return nil
		},
	}
	cmd.Flags().Var(newFitsFlag(&limit, &gpu, &typed), "fits", "those whose weights are no larger than `SIZE`, such as 24GiB, h100 or 4090")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON: schema, and models with name, family, published_as, parameters, weights_bytes")
	return cmd
}

const listSchema = "gpumemtrack.estimate.list/1"

// listedModel is a model that --json lists.
type listedModel struct {
	Name       string      `json:"name"`
	Family     string      `json:"family"`
	Published  string      `json:"published_as"`
	Parameters int64       `json:"parameters"`
	Weights    alloc.Bytes `json:"weights_bytes"`
}

// hasWords reports whether a text has all of the words, in upper or lower case.
func hasWords(of string, words []string) bool {
	return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(strings.ToLower(of), strings.ToLower(w)) })
}

// familyOf returns what a config.json calls the family of a model: its model_type, or the class of diffusers; of models that
// have none, the letters that their names begin with.
func familyOf(m zoo.Model) string {
	var c struct {
		Type  string `json:"model_type"`
		Class string `json:"_class_name"`
	}
	if json.Unmarshal(m.Config, &c) == nil {
		return c.Type + c.Class
	}
	return m.Name[:len(m.Name)-len(strings.TrimLeft(m.Name, "abcdefghijklmnopqrstuvwxyz"))]
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
