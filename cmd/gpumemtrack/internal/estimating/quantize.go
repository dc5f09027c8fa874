package estimating

import (
	"maps"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/llamacpp"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// bases are the forms of --quantize in PyTorch.
var bases = []string{"nf4", "nf4-double", "int8", "gptq", "awq"}

// ggufNames are the names of llama.cpp's quantizations as flags have them.
func ggufNames() []string {
	var names []string
	for _, q := range llamacpp.Quantizations() {
		names = append(names, strings.ToLower(string(q)))
	}
	return names
}

// ggufNamed returns the quantization that --quantize names for llama.cpp; "" if it is not given.
func ggufNamed(given string) (llamacpp.Quantization, error) {
	if given == "" {
		return "", nil
	}
	q, err := llamacpp.QuantizationNamed(given)
	switch {
	case err != nil && slices.Contains(bases, strings.ToLower(given)):
		return "", cli.UsageError("estimate: --quantize %s is not llama.cpp's: want one of %s", given, strings.Join(ggufNames(), ", "))
	case err != nil:
		return "", cli.UsageError("estimate: --quantize %s: want one of %s", given, strings.Join(ggufNames(), ", "))
	}
	return q, nil
}

// quantizer returns the rules by which the engine's release quantizes. Those of today came in March 2026, between b8179 and b8680;
// which build has them first is not known.
func (o *engineOptions) quantizer() func(llamacpp.Quantization, []nn.Layer) (estimate.Option, error) {
	if n := o.build(); n > 0 && n <= 8179 {
		return llamacpp.Quantization.StoredBefore2026
	}
	return llamacpp.Quantization.Stored
}

// quantizedInPyTorch reads a form of --quantize that is PyTorch's: one for all, or PART=FORM,... for parts of a pipeline.
func quantizedInPyTorch(given string) (estimate.Quantized, error) {
	if _, err := llamacpp.QuantizationNamed(given); err == nil {
		return estimate.Quantized{}, cli.UsageError("estimate: --quantize %s is llama.cpp's: it needs --engine llama.cpp", given)
	}
	if !strings.Contains(given, "=") {
		base, err := quantizedBase(given)
		return estimate.Quantized{Base: base}, err
	}
	parts := map[string]string{}
	for part := range strings.SplitSeq(given, ",") {
		name, form, _ := strings.Cut(part, "=")
		base, err := quantizedBase(form)
		switch {
		case err != nil:
			return estimate.Quantized{}, err
		case name == "" || parts[name] != "":
			return estimate.Quantized{}, cli.UsageError("estimate: --quantize %s: want each part once, as in transformer=nf4,text_encoder_2=int8", given)
		}
		parts[name] = base
	}
	return estimate.Quantized{Parts: parts}, nil
}

// quantizedBase returns a form as package estimate has it.
func quantizedBase(form string) (string, error) {
	if lower := strings.ToLower(form); slices.Contains(bases, lower) {
		return lower, nil
	}
	return "", cli.UsageError("estimate: --quantize %s: want one of %s", form, strings.Join(bases, ", "))
}

// quantizedParts returns the option for a pipeline whose part runs beside others that are held, and a note on what stays wide.
func quantizedParts(q estimate.Quantized, runs string, held []string, wide string) (estimate.Quantized, string, error) {
	all := append([]string{runs}, held...)
	for _, name := range slices.Sorted(maps.Keys(q.Parts)) {
		if !slices.Contains(all, name) {
			return q, "", cli.UsageError("estimate: --quantize %s=%s: the pipeline's parts are %s", name, q.Parts[name], strings.Join(all, ", "))
		}
	}
	packed := []string{runs}
	if q.Parts == nil {
		q.Layers = []string{runs + ".*"}
	} else {
		packed = slices.Sorted(maps.Keys(q.Parts))
	}
	stay := slices.DeleteFunc(all, func(name string) bool { return slices.Contains(packed, name) })
	note := "quantized: the linear layers of " + list(packed)
	if len(stay) > 0 {
		if wide == "" {
			wide = "as they are"
		}
		note += "; " + list(stay) + " stay " + wide + ": --quantize PART=FORM,... names others"
	}
	return q, note, nil
}

// list joins names with commas and "and".
func list(names []string) string {
	if n := len(names); n > 1 {
		return strings.Join(names[:n-1], ", ") + " and " + names[n-1]
	}
	return strings.Join(names, "")
}
