package estimating

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
)

// listed returns the names that estimate list prints, and its last line.
func listed(t *testing.T, args string) (names []string, last string) {
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(strings.Fields("estimate list "+args), nil, &stdout, &stderr), stderr.String())
	lines := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	for _, line := range lines {
		if cells := strings.Fields(line); cells[0] == "│" && cells[1] != "Name" {
			names = append(names, cells[1])
		}
	}
	return names, lines[len(lines)-1]
}

// Models of a series stand together, in the order of their numbers and sizes, and can be filtered.
func TestList(t *testing.T) {
	all, last := listed(t, "")
	assert.Regexp(t, `^\d+ models. Words filter by name and family: list qwen 7b; --fits SIZE by weights`, last)
	text := " " + strings.Join(all, " ") + " "
	for _, series := range []string{
		"resnet18 resnet34 resnet50 resnet101 resnet152", "qwen3-0.6b qwen3-1.7b qwen3-4b qwen3-8b qwen3-14b qwen3-32b",
		"gemma-2-2b gemma-2-9b gemma-2-27b gemma-3-270m", "llama-2-70b llama-3-8b llama-3-70b llama-3.1-8b", "t5-small t5-base t5-large t5-3b t5-11b",
	} {
		assert.Contains(t, text, " "+series+" ")
	}
	names, last := listed(t, "Qwen3_MoE")
	assert.Subset(t, names, []string{"qwen3-30b-a3b", "qwen3-235b-a22b"})
	assert.Regexp(t, `^\d+ of \d+ models\.$`, last)
	names, _ = listed(t, "qwen3_moe --fits h100")
	assert.Contains(t, names, "qwen3-30b-a3b")
	assert.NotContains(t, names, "qwen3-235b-a22b")
	var stdout, stderr bytes.Buffer
	assert.Equal(t, cli.ExitFailed, run(strings.Fields("estimate list qwen --fits 1MiB"), nil, &stdout, &stderr))
	assert.Regexp(t, `none of the \d+ models that are known by name is one of qwen 1MiB`, stderr.String())
}

// The list has the same models in JSON.
func TestListJSON(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(strings.Fields("estimate list llama-3 8b --json"), nil, &stdout, &stderr), stderr.String())
	var list struct {
		Schema string
		Models []listedModel
	}
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &list))
	assert.Equal(t, listSchema, list.Schema)
	assert.Contains(t, list.Models, listedModel{"llama-3-8b", "llama", "bfloat16", 8030261248, 16060522496})
	names, _ := listed(t, "llama-3 8b")
	assert.Len(t, list.Models, len(names))
}

// What is nearly the name of a flag, a GPU or an engine proposes the right one.
func TestNearMisses(t *testing.T) {
	for args, want := range map[string]string{
		"--serv":           "there is no flag --serv: did you mean --serve?",
		"--quantise nf4":   "did you mean --quantize?",
		"--llama-cpp":      "there is no flag --llama-cpp: use --engine llama.cpp: see gpumemtrack estimate --help",
		"--gpu h10":        "--gpu h10 is not known: did you mean h100",
		"--gpu 'RTX 4091'": "did you mean 4090?",
		"--gpu hoper":      "did you mean hopper?",
		"--fits 4900":      "did you mean 4090",
		"--fits h101":      "no such GPU is known: did you mean h100?",
		"--fits 10":        "did you mean 10GiB? A number needs its unit",
		"--fits many":      "want a size such as 24GiB, or a GPU such as 4090",
		"--fits 2x4090":    "want one GPU: --fits 4090 with --tp 2",
		"-np 4":            "there is no flag -np: use --slots",
		"-c 4096":          "there is no flag -c: use --seq",
		"--cache-type-k x": "use --kv, as in --kv q8_0",
		"-x":               "unknown shorthand flag: 'x' in -x",

		"--per_device_train_batch_size 2":         "there is no flag --per_device_train_batch_size: use --batch",
		"--train --sharded-by fsdp2 --replicas 2": "--sharded-by fsdp2 needs --zero",

		"--zzz": "unknown flag: --zzz: see gpumemtrack estimate --help",
	} {
		words := append([]string{"estimate", "gpt2"}, strings.SplitN(args, " ", 2)...)
		if strings.Count(args, "--") > 1 {
			words = append(words[:2], strings.Fields(args)...)
		}
		for i := range words {
			words[i] = strings.Trim(words[i], "'")
		}
		var stdout, stderr bytes.Buffer
		assert.Equal(t, cli.ExitUsage, run(words, nil, &stdout, &stderr), args)
		assert.Contains(t, stderr.String(), want, args)
	}
}

// A size in GB is less than a card of that size has.
func TestDecimalSizes(t *testing.T) {
	printed := func(fits string) string {
		var stdout, stderr bytes.Buffer
		run([]string{"estimate", "gpt2", "--fits", fits}, nil, &stdout, &stderr)
		return stdout.String()
	}
	assert.Contains(t, printed("24GB"), "Note: 24 GB are 22.4 GiB, by 10^9 bytes; a card that is sold with 24 GB has 24 GiB, less what its driver keeps: A10 22.0 GiB, L4 22.0 GiB, RTX 4090 23.5 GiB, RTX 3090 23.7 GiB: --fits 3090\n")
	assert.Contains(t, printed("80 GB"), "H100 79.1 GiB")
	for _, fits := range []string{"24GiB", "4090", "23GB", "24000MB"} {
		assert.NotContains(t, printed(fits), "10^9", fits)
	}
}

// Files that are only a part of what runs have weights alone, and no need.
func TestWeightsAloneAreCalledSo(t *testing.T) {
	dir := t.TempDir()
	m, err := zoo.ByName("flux.1-dev-transformer")
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "transformer"), 0o700))
	for name, text := range map[string]string{
		"model_index.json":        `{"_class_name": "FluxPipeline", "transformer": ["diffusers", "FluxTransformer2DModel"], "vae": ["diffusers", "AutoencoderKL"]}`,
		"transformer/config.json": string(m.Config),
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	var stdout, stderr bytes.Buffer
	require.Zero(t, run([]string{"estimate", dir}, nil, &stdout, &stderr), stderr.String())
	assert.Regexp(t, `weights alone +│ +22.2 GiB`, stdout.String())
	assert.NotRegexp(t, "it needs|at most", stdout.String())
}
