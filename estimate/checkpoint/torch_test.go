package checkpoint

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

const saved = "testdata/saved"

func storedOf(t *testing.T, path string) (*File, string) {
	t.Helper()
	c, err := ReadFile(filepath.Join(saved, path))
	require.NoError(t, err)
	return c, fmt.Sprint(c.Stored())
}

// The files are those of PyTorch's own writers: testdata/saved/save.py.
func TestTorchFiles(t *testing.T) {
	const model = "[{BF16 4 498 996 B} {F32 4 72 288 B} {I64 1 1 8 B}]"
	const sharded = "[{BF16 3 891 1.7 KiB} {F32 2 66 264 B}]"
	for _, test := range []struct{ path, name, format, stored, notes string }{
		{"state_dict.pt", "state_dict", "torch.save", model, "[tensors that share the memory of others, and count once: 1]"},
		{"module.pt", "module", "torch.save", model, "[tensors that share the memory of others, and count once: 1]"},
		{"training.pt", "training", "torch.save", model, `[tensors that share the memory of others, and count once: 1 not weights, and not counted: 2.3 KiB, of what is not under "model", such as an optimizer's state (tensors: 19)]`},
		{
			"views.pt", "views", "torch.save", "[{F32 2 40 160 B} {C64 1 2 16 B} {F16 1 4 8 B} {I64 1 1 8 B} {U16 1 3 6 B} {BOOL 1 3 3 B} {F8_E4M3 1 3 3 B}]",
			"[tensors that share the memory of others, and count once: 1 tensors of the meta device, of which the file has no data, and which are not counted: 1]",
		},
		{"quantized.pt", "quantized", "torch.save", "[{F32 3 11 44 B} {qint8 1 24 24 B}]", "[]"},
		{"sharded_bin", "sharded_bin", "torch.save", "[{BF16 5 690 1.3 KiB} {F32 4 72 288 B} {I64 1 1 8 B}]", "[]"},
		{"sharded_bin/pytorch_model.bin.index.json", "sharded_bin", "torch.save", "[{BF16 5 690 1.3 KiB} {F32 4 72 288 B} {I64 1 1 8 B}]", "[]"},
		{"unknown", "unknown", "safetensors", "[{BF16 5 690 1.3 KiB} {F32 4 72 288 B} {I64 1 1 8 B}]", "[]"},
		{"dcp", "dcp", "torch.distributed.checkpoint", sharded, `[not weights, and not counted: 4.0 KiB, of what is not under "model", such as an optimizer's state (tensors: 15)]`},
		{"dcp_model", "dcp_model", "torch.distributed.checkpoint", sharded, "[]"},
		{"dcp_model/.metadata", "dcp_model", "torch.distributed.checkpoint", sharded, "[]"},
		{"dcp_safetensors", "dcp_safetensors", "safetensors", sharded, "[joined from 2 pieces that torch.distributed.checkpoint saved; the files do not say how many there were]"},
		{
			"dcp_safetensors/shard-00001-model-00001-of-00001.safetensors", "shard-00001-model-00001-of-00001", "safetensors", "[{BF16 3 471 942 B} {F32 2 34 136 B}]",
			"[this file is one piece of a model, as a rank of torch.distributed.checkpoint saved it (DCP_SHARDING_INFO): open its folder for the whole model]",
		},
	} {
		t.Run(test.path, func(t *testing.T) {
			c, stored := storedOf(t, test.path)
			assert.Equal(t, test.name, c.Name)
			assert.Equal(t, test.format, c.Format)
			assert.Equal(t, test.stored, stored)
			assert.Equal(t, test.notes, fmt.Sprint(c.Notes()))
			r, err := c.Report()
			require.NoError(t, err)
			assert.Equal(t, c.parameters(), r.Params.Count)
			for _, note := range c.Notes() {
				assert.Contains(t, r.Notes, note)
			}
		})
	}
}

// What torch.load holds in memory is what is counted, with what is not weights.
func TestTorchFilesHoldWhatTorchLoads(t *testing.T) {
	var loaded struct {
		Files map[string]struct {
			Bytes alloc.Bytes `json:"bytes"`
		} `json:"files"`
	}
	text, err := os.ReadFile(filepath.Join(saved, "saved.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &loaded))
	for name, beside := range map[string]alloc.Bytes{"state_dict.pt": 0, "training.pt": 2368, "views.pt": 0, "quantized.pt": -32} { // torch.load's list has no scales
		c, _ := storedOf(t, name)
		assert.Equal(t, loaded.Files[name].Bytes, c.bytes()+beside, name)
	}
}

func TestTorchBuffersOfAModule(t *testing.T) {
	c, _ := storedOf(t, "module.pt")
	var names, buffers []string
	for _, tensor := range c.tensors {
		names = append(names, tensor.Name)
		if tensor.buffer {
			buffers = append(buffers, tensor.Name)
		}
	}
	assert.Equal(t, []string{"embed.weight", "up.weight", "up.bias", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "down.weight"}, names)
	assert.Equal(t, []string{"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}, buffers)
}

func savedFile(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(saved, name))
	require.NoError(t, err)
	return b
}

func TestTorchFilesSayWhatIsWrong(t *testing.T) {
	const shard = "shard-00001-model-00001-of-00001.safetensors"
	first, second := string(savedFile(t, "dcp_safetensors/"+shard)), string(savedFile(t, "dcp_safetensors/"+strings.Replace(shard, "1", "2", 1)))
	third := strings.Replace(shard, "1", "3", 1)
	index := string(savedFile(t, "sharded_bin/pytorch_model.bin.index.json"))
	half := string(savedFile(t, "sharded_bin/pytorch_model-00001-of-00002.bin"))
	for name, test := range map[string]struct {
		files map[string]string
		want  string
	}{
		"legacy":          {map[string]string{"m.pt": string(savedFile(t, "legacy.pt"))}, "torch.save(torch.load(FILE, weights_only=True), FILE)"},
		"a piece":         {map[string]string{"__0_0.distcp": string(savedFile(t, "dcp_model/__0_0.distcp"))}, "it is one piece of a checkpoint of torch.distributed.checkpoint: open its folder"},
		"truncated":       {map[string]string{"m.pt": string(savedFile(t, "state_dict.pt")[:4000])}, "truncated"},
		"not a model":     {map[string]string{"m.pt": "PK\x03\x04 and so on"}, "truncated"},
		"a gap in pieces": {map[string]string{shard: first, third: second}, "where shard-00002-... belongs: a piece of the model is missing"},
		"a piece twice":   {map[string]string{shard: first, strings.Replace(shard, "1", "2", 1): first}, "two pieces begin at [0]"},
		"first missing":   {map[string]string{shard: second}, "elements of (33,): a piece is missing"},
		"no place":        {map[string]string{shard: first, strings.Replace(shard, "1", "2", 1): strings.Replace(second, "DCP_SHARDING_INFO", "DCP_SHARDING_INFA", 1)}, "its place in the whole tensor is not in the file"},
		"not JSON":        {map[string]string{shard: strings.Replace(first, `: {\"saved_offsets`, `: [\"saved_offsets`, 1)}, "DCP_SHARDING_INFO: it is not the JSON"},
		"dimensions":      {map[string]string{shard: strings.Replace(first, `[0, 0]`, `[0,-1]`, 1)}, "no place in a tensor of 2 dimensions"},
		"shard missing":   {map[string]string{"pytorch_model.bin.index.json": index, "pytorch_model-00001-of-00002.bin": half}, "pytorch_model-00002-of-00002.bin"},
		"index of others": {map[string]string{"pytorch_model.bin.index.json": `{"weight_map": {"w": "pytorch_model-00001-of-00002.bin"}}`, "pytorch_model-00001-of-00002.bin": half}, "which the index does not name"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := writeFolder(t, test.files)
			path := dir
			if len(test.files) == 1 && !strings.HasPrefix(name, "first") {
				for file := range test.files {
					path = filepath.Join(dir, file)
				}
			}
			_, err := ReadFile(path)
			require.ErrorContains(t, err, test.want)
			if name != "shard missing" {
				assert.ErrorIs(t, err, fs.ErrInvalid)
			}
		})
	}
}

// Beside a config.json lie files of torch.save that are no model, and files of other programs with such names.
func TestTorchFilesThatAreNoModel(t *testing.T) {
	c, err := ReadFile(writeFolder(t, map[string]string{
		"config.json":       `{"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 10, "n_positions": 8}`,
		"training_args.bin": string(savedFile(t, "state_dict.pt")), "optimizer.pt": string(savedFile(t, "state_dict.pt")), "vocab.bin": "a\nb\n",
	}))
	require.NoError(t, err)
	assert.Equal(t, "config", c.Format)
}
