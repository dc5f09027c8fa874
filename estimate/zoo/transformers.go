package zoo

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/families"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family/encoder"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family/vision"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/strictjson"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

func encoders() []entry {
	return []entry{
		vit("vit-b-16", "ViT-B/16", 86567656, 768, 12, 12).at("google/vit-base-patch16-224"),
		vit("vit-l-16", "ViT-L/16", 304326632, 1024, 24, 16).at("google/vit-large-patch16-224"),
		language("bert-base-uncased", "BERT base", 109482240, kerasHub("bert", "bert_base_en_uncased"), alloc.Float32, 128, bert(768, 12, 12)),
		language("bert-large-uncased", "BERT large", 335141888, kerasHub("bert", "bert_large_en_uncased"), alloc.Float32, 128, bert(1024, 24, 16)),
	}
}

func vit(name, title string, params int64, hidden, blocks, heads int) entry {
	t := family.Transformer{Family: vision.ViT, Hidden: hidden, Blocks: blocks, Heads: heads, Head: family.Head{Classes: 1000}}
	return entry{name, title, params, torchvision(strings.ReplaceAll(name, "-", "_")), alloc.Float32, func() ([]tape.Layer, estimate.Option, *family.Transformer) {
		return t.Layers(), estimate.InputShape(1, 3, 224, 224), &t
	}, nil, nil}
}

func bert(hidden, blocks, heads int) family.Transformer {
	return family.Transformer{
		Family: encoder.BERT, Vocab: 30522, Hidden: hidden, Blocks: blocks, Heads: heads, Positions: 512, Dropout: 0.1,
	}
}

func gpts() []entry {
	return []entry{
		gpt2("gpt2", "gpt2_base_en", "GPT-2 small", 124439808, 768, 12, 12),
		gpt2("gpt2-medium", "gpt2_medium_en", "GPT-2 medium", 354823168, 1024, 24, 16),
		gpt2("gpt2-large", "gpt2_large_en", "GPT-2 large", 774030080, 1280, 36, 20),
		gpt2("gpt2-xl", "gpt2_extra_large_en", "GPT-2 XL", 1557611200, 1600, 48, 25),
	}
}

func gpt2(name, preset, title string, params int64, hidden, blocks, heads int) entry {
	return language(name, title, params, kerasHub("gpt2", preset), alloc.Float32, 1024, family.Transformer{
		Family: family.GPT2, Vocab: 50257, Hidden: hidden, Blocks: blocks, Heads: heads, Positions: 1024, Tied: true, Dropout: 0.1,
	})
}

func llamas() []entry {
	return []entry{
		language("llama-2-7b", "Llama 2 7B", 6738415616, llama2("7b", 32), alloc.Float16, 4096, family.Transformer{
			Vocab: 32000, Hidden: 4096, Blocks: 32, Heads: 32, FFN: 11008, Attention: family.Attention{Context: 4096, ContextMask: true}}).at("lmsys/vicuna-7b-v1.5"),
		language("llama-2-13b", "Llama 2 13B", 13015864320, llama2("13b", 40), alloc.Float16, 4096, family.Transformer{
			Vocab: 32000, Hidden: 5120, Blocks: 40, Heads: 40, FFN: 13824, Attention: family.Attention{Context: 4096, ContextMask: true}}).at("lmsys/vicuna-13b-v1.5"),
		language("llama-2-70b", "Llama 2 70B", 68976648192, llama2("70b", 80), alloc.Float16, 4096, family.Transformer{
			Vocab: 32000, Hidden: 8192, Blocks: 80, Heads: 64, KVHeads: 8, FFN: 28672, Attention: family.Attention{Context: 4096, ContextMask: true}}),
		language("llama-3-8b", "Llama 3 8B", 8030261248, kerasHub("llama3", "llama3_8b_en"), alloc.BFloat16, 8192, family.Transformer{
			Vocab: 128256, Hidden: 4096, Blocks: 32, Heads: 32, KVHeads: 8, FFN: 14336, Attention: family.Attention{Context: 8192, ContextMask: true}}),
		language("llama-3-70b", "Llama 3 70B", 70553706496, huggingFace("meta-llama/Llama-3.1-70B", ", whose layers are the same"), alloc.BFloat16, 8192, family.Transformer{
			Vocab: 128256, Hidden: 8192, Blocks: 80, Heads: 64, KVHeads: 8, FFN: 28672, Attention: family.Attention{Context: 8192, ContextMask: true}}),
		language("mistral-7b", "Mistral 7B", 7241732096, kerasHub("mistral", "mistral_7b_en"), alloc.BFloat16, 4096, family.Transformer{
			Vocab: 32000, Hidden: 4096, Blocks: 32, Heads: 32, KVHeads: 8, FFN: 14336, Attention: family.Attention{Window: 4096, Context: 32768}}).at("mistralai/Mistral-7B-v0.1", "HuggingFaceH4/zephyr-7b-beta"),
		language("mixtral-8x7b", "Mixtral 8x7B", 46702792704, kerasHub("mixtral", "mixtral_8_7b_en"), alloc.BFloat16, 4096, family.Transformer{
			Vocab: 32000, Hidden: 4096, Blocks: 32, Heads: 32, KVHeads: 8, FFN: 14336, Mixture: family.Mixture{Experts: 8, TopK: 2}, Attention: family.Attention{Context: 32768}}).at("mistralai/Mixtral-8x7B-v0.1"),
	}
}

// llama2 is the count of Llama 2's files, which hold the 64 frequencies of the
// rotary positions once a block: they are a buffer, and not trained.
func llama2(size string, blocks int) string {
	return huggingFace("meta-llama/Llama-2-"+size+"-hf", fmt.Sprintf(", less %d x 64 of rotary_emb.inv_freq", blocks))
}

func qwens() []entry {
	return []entry{
		qwen("qwen2.5-0.5b", "Qwen2.5 0.5B", 494032768, kerasHub("qwen", "qwen2.5_0.5b_en"), 896, 24, 14, 2, 4864, 151936, true),
		qwen("qwen2.5-1.5b", "Qwen2.5 1.5B", 1543714304, kerasHub("qwen", "qwen2.5_math_1.5b_en")+", whose layers are the same", 1536, 28, 12, 2, 8960, 151936, true),
		qwen("qwen2.5-3b", "Qwen2.5 3B", 3085938688, kerasHub("qwen", "qwen2.5_3b_en"), 2048, 36, 16, 2, 11008, 151936, true),
		qwen("qwen2.5-7b", "Qwen2.5 7B", 7615616512, kerasHub("qwen", "qwen2.5_math_7b_en")+", whose layers are the same", 3584, 28, 28, 4, 18944, 152064, false),
		qwen("qwen2.5-14b", "Qwen2.5 14B", 14770033664, "huggingface.co/Qwen/Qwen2.5-14B/blob/main/model.safetensors.index.json: total_size, two bytes a parameter", 5120, 48, 40, 8, 13824, 152064, false),
		qwen("qwen2.5-32b", "Qwen2.5 32B", 32763876352, kerasHub("qwen", "qwen2.5_instruct_32b_en"), 5120, 64, 40, 8, 27648, 152064, false),
		qwen("qwen2.5-72b", "Qwen2.5 72B", 72706203648, kerasHub("qwen", "qwen2.5_instruct_72b_en"), 8192, 80, 64, 8, 29568, 152064, false),
	}
}

func qwen(name, title string, params int64, source string, hidden, blocks, heads, kv, ffn, vocab int, tied bool) entry {
	return language(name, title, params, source, alloc.BFloat16, 4096, family.Transformer{
		Vocab: vocab, Hidden: hidden, Blocks: blocks, Heads: heads, KVHeads: kv, FFN: ffn, Attention: family.Attention{QKVBias: true}, Tied: tied,
	})
}

// swinBlock is attention within windows and an MLP, each added to what it reads (arXiv:2103.14030, figure 3).
func swinBlock(channels int, shifted, drop bool) tape.Layer {
	attention := layer.WindowAttention{Hidden: channels, Heads: channels / 32, Window: 7, Shifted: shifted, Packed: true, Plain: true}
	mlp := tape.Sequential{
		layer.Linear{In: channels, Out: 4 * channels}, layer.GELU{}, tape.Identity{},
		layer.Linear{In: 4 * channels, Out: channels}, tape.Identity{},
	}
	sum := func(norm, name string, l tape.Layer) tape.Layer {
		return tape.Inline(tape.Residual{Body: tape.Sequential{
			tape.As(norm, layer.LayerNorm{Size: channels}), tape.As(name, l), tape.As("stochastic_depth", tape.If(drop, layer.StochasticDepth{})),
		}})
	}
	return tape.Sequential{sum("norm1", "attn", attention), sum("norm2", "mlp", mlp)}
}

// swinTiny follows arXiv:2103.14030, table 7.
func swinTiny() []tape.Layer {
	channels := 96
	features := tape.Sequential{tape.Sequential{
		layer.Conv2d{In: 3, Out: channels, Kernel: 4, Stride: 4}, tape.Permute{0, 2, 3, 1}, layer.LayerNorm{Size: channels},
	}}
	for i, blocks := range []int{2, 2, 6, 2} {
		if i > 0 {
			features, channels = append(features, layer.PatchMerging{Channels: channels}), 2*channels
		}
		var stage tape.Sequential
		for b := range blocks {
			stage = append(stage, swinBlock(channels, b%2 == 1, i > 0 || b > 0))
		}
		features = append(features, stage)
	}
	return []tape.Layer{
		tape.As("features", features),
		tape.As("norm", layer.LayerNorm{Size: channels}),
		tape.As("permute", tape.Permute{0, 3, 1, 2}),
		tape.As("avgpool", layer.AdaptiveAvgPool(1)),
		tape.As("flatten", layer.Flatten{}),
		tape.As("head", layer.Linear{In: channels, Out: 1000}),
	}
}

// modelsJSON has the settings of models, as far as they bear on sizes, by the repository at huggingface.co whose config.json
// has them, with the number of parameters that count.py counted, or diffusers did. testdata/others.json has more, for tests.
// The program carries them compressed: they would be 90 kB more.
//
//go:generate gzip -9 -n -k -f models.json
//go:embed models.json.gz
var modelsJSON []byte

// known is a model of models.json.
type known struct {
	Params int64
	Config json.RawMessage
	DType  string
	Name   string   // "" means the repository's name, in lower case
	Also   []string // repositories of models with the same layers
}

// published are the entries of models.json, in the order of their families' types and of their sizes.
var published = sync.OnceValue(func() []entry {
	var file map[string]json.RawMessage
	if err := strictjson.Unzip(modelsJSON, &file); err != nil {
		panic("models.json: " + err.Error()) // it is a part of the program
	}
	delete(file, "transformers") // its version
	var all []entry
	for _, repository := range slices.Sorted(maps.Keys(file)) {
		var k known
		if err := json.Unmarshal(file[repository], &k); err != nil {
			panic("models.json: " + repository + ": " + err.Error())
		}
		all = append(all, k.entry(repository))
	}
	slices.SortStableFunc(all, func(a, b entry) int {
		if c := strings.Compare(familyOf(a.name), familyOf(b.name)); c != 0 {
			return c
		}
		return int(max(-1, min(1, a.params-b.params)))
	})
	return all
})

// familyOf returns a name up to its first number, by which the names of a family are sorted
// together.
func familyOf(name string) string {
	if i := strings.IndexAny(name, "0123456789"); i > 0 {
		return name[:i]
	}
	return name
}

// entry makes the model when it is asked for.
func (k known) entry(repository string) entry {
	also := k.Also
	if !strings.Contains(repository, " ") { // after which is a part of it, such as "unet"
		also = append(also, repository)
	}
	title := repository[strings.LastIndexByte(repository, '/')+1:]
	d, err := alloc.ParseDType(k.DType)
	if err != nil {
		panic("models.json: " + repository + ": " + err.Error())
	}
	e := entry{
		name: strings.ToLower(title), title: title, params: k.Params, dtype: d, also: also,
		source: "huggingface.co/" + repository + ": its config.json, counted by transformers or diffusers",
	}
	if k.Name != "" {
		e.name = k.Name
	}
	e.config = slices.Concat([]byte(`{"torch_dtype": "`+k.DType+`", `), k.Config[1:])
	e.build = func() ([]tape.Layer, estimate.Option, *family.Transformer) {
		m := k.model(repository)
		inputs := family.Given(m.Inputs(1, 0))
		if m.Images != nil {
			return m.Layers(), inputs, nil
		}
		return m.Layers(), inputs, &m.Transformer
	}
	return e
}

// model returns the model that the settings describe.
func (k known) model(repository string) family.Model {
	var of struct {
		Type  string `json:"model_type"`
		Class string `json:"_class_name"`
	}
	err := json.Unmarshal(k.Config, &of)
	m := family.Model{}
	if err == nil {
		m, err = families.Table().ReadConfig(of.Type+of.Class, k.Config)
	}
	if err != nil {
		panic(fmt.Sprintf("models.json: %s: %v", repository, err))
	}
	return m
}
