package torchsave_test

import (
	"archive/zip"
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/torchsave"
)

const saved = "../../checkpoint/testdata/saved/"

func read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(saved + name)
	require.NoError(t, err)
	return b
}

// archive is a file of torch.save with this data.pkl and storages.
func archive(pickle string, storages map[string]int) []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	add := func(name string, content []byte) {
		w, _ := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		_, _ = w.Write(content)
	}
	add("a/data.pkl", []byte(pickle))
	for key, n := range storages {
		add("a/data/"+key, make([]byte, n))
	}
	_ = z.Close()
	return b.Bytes()
}

// tensor is the pickle of a tensor of float32 with these numbers of its own.
func tensor(key string, numel, offset int64, shape, strides string) string {
	return fmt.Sprintf("ctorch._utils\n_rebuild_tensor_v2\n((S'storage'\nctorch\nFloatStorage\nS'%s'\nS'cpu'\nI%d\ntQI%d\n(%st(%stI00\nNtR", key, numel, offset, shape, strides)
}

func dict(members ...string) string {
	var b strings.Builder
	b.WriteString("(d")
	for i, m := range members {
		if i%2 == 0 {
			fmt.Fprintf(&b, "S'%s'\n", m)
		} else {
			b.WriteString(m + "s")
		}
	}
	return b.String()
}

func TestArchives(t *testing.T) {
	one := tensor("0", 4, 0, "I2\nI2\n", "I2\nI1\n")
	for name, test := range map[string]struct {
		pickle string
		want   string
	}{
		"one":               {dict("w", one), `[{w float32 [2 2] 4 16 false}] [w]  {0 0} 0`},
		"a tensor alone":    {one, `[{tensor float32 [2 2] 4 16 false}] [tensor]  {0 0} 0`},
		"tied":              {dict("a", one, "b", one), `[{a float32 [2 2] 4 16 false}] [a b]  {0 0} 0`},
		"a view":            {dict("w", tensor("0", 4, 1, "I2\n", "I2\n")), `[{w float32 [4] 4 16 false}] [w]  {0 0} 0`},
		"a list":            {"(l" + one + "a", `[{0 float32 [2 2] 4 16 false}] [0]  {0 0} 0`},
		"number as key":     {"(dI7\n" + one + "s", `[{7 float32 [2 2] 4 16 false}] [7]  {0 0} 0`},
		"in a model":        {dict("epoch", "I1\n", "model", dict("w", one), "optimizer", dict("m", tensor("1", 1, 0, "", ""))), `[{w float32 [2 2] 4 16 false}] [w] model {1 4} 0`},
		"in another dict":   {dict("app", dict("model", dict("w", one), "optim", dict("m", tensor("1", 1, 0, "", "")))), `[{w float32 [2 2] 4 16 false}] [w] app.model {1 4} 0`},
		"beside optimizer":  {dict("generator", dict("w", one), "optim_g", dict("m", tensor("1", 1, 0, "", ""))), `[{generator.w float32 [2 2] 4 16 false}] [generator.w]  {1 4} 0`},
		"a name with model": {dict("model.w", one), `[{model.w float32 [2 2] 4 16 false}] [model.w]  {0 0} 0`},
		"subclass": {dict("w", "ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\ncmine\nTensor\n((S'storage'\nctorch\nFloatStorage\nS'0'\nS'cpu'\nI4\ntQI0\n(I4\nt(I1\ntI00\nNt"+dict("scale", tensor("1", 1, 0, "", ""))+"tR"),
			`[{w float32 [4] 4 16 false} {w.scale float32 [] 1 4 false}] [w w.scale]  {0 0} 0`},
		"code is not run": {dict("x", "cos\nsystem\n(S'exit 1'\ntR", "w", one), `[{w float32 [2 2] 4 16 false}] [w]  {0 0} 0`},
	} {
		t.Run(name, func(t *testing.T) {
			content := archive(test.pickle+".", map[string]int{"0": 16, "1": 4})
			f, err := torchsave.ReadArchive(bytes.NewReader(content), int64(len(content)))
			require.NoError(t, err)
			assert.Equal(t, test.want, fmt.Sprint(f.Tensors, f.Names, " ", f.Part, " ", f.Rest, f.NoData))
		})
	}
}

func TestArchivesSayWhatIsWrong(t *testing.T) {
	one := tensor("0", 4, 0, "I2\nI2\n", "I2\nI1\n")
	valid := archive(dict("w", one)+".", map[string]int{"0": 16})
	packed := func() []byte {
		var b bytes.Buffer
		z := zip.NewWriter(&b)
		w, _ := z.Create("a/data.pkl")
		_, _ = w.Write([]byte("N."))
		_ = z.Close()
		return b.Bytes()
	}
	many := bytes.Clone(valid)
	at := bytes.LastIndex(many, []byte("PK\x05\x06"))
	locator := append([]byte("PK\x06\x07\x00\x00\x00\x00"), 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0)
	far := append([]byte("PK\x06\x06"+strings.Repeat("\x00", 28)+"\xff\xff\xff\xff\xff\xff\xff\x00"+strings.Repeat("\x00", 16)), locator...)
	far = append(far, many[at:]...)
	for name, test := range map[string]struct {
		content []byte
		want    string
	}{
		"empty":             {nil, "truncated"},
		"cut":               {valid[:len(valid)-10], "truncated"},
		"cut in the middle": {valid[:200], "truncated"},
		"no data.pkl":       {archiveOf("a/other"), "without a data.pkl"},
		"packed":            {packed(), "it is packed"},
		"a storage twice":   {archiveOf("a/data.pkl", "a/data/0", "a/data/0"), `storage "0" twice`},
		"many entries":      {far, "72057594037927935 files, want at most"},
		"pickle cut":        {archive("(d", nil), "the file is torn"},
		"no storage":        {archive(dict("w", one)+".", nil), `tensor "w": its storage "0" is not in the file`},
		"small storage":     {archive(dict("w", one)+".", map[string]int{"0": 12}), `storage "0" has 12 bytes, and the tensors say 16`},
		"beyond":            {archive(dict("w", tensor("0", 4, 1, "I2\nI2\n", "I2\nI1\n"))+".", map[string]int{"0": 16}), "reach to 4, and its storage has 4"},
		"overflow":          {archive(dict("w", tensor("0", 4, 0, "I4294967296\nI4294967296\n", "I0\nI0\n"))+".", map[string]int{"0": 16}), "overflows"},
		"strides overflow":  {archive(dict("w", tensor("0", 4, 0, "I4294967296\n", "I4294967296\n"))+".", map[string]int{"0": 16}), "overflows"},
		"negative":          {archive(dict("w", tensor("0", 4, 0, "I-1\n", "I1\n"))+".", map[string]int{"0": 16}), "no whole number"},
		"negative storage":  {archive(dict("w", tensor("0", -4, 0, "I1\n", "I1\n"))+".", map[string]int{"0": 16}), "say -16"},
		"huge storage":      {archive(dict("w", tensor("0", 1<<61, 0, "I1\n", "I1\n"))+".", map[string]int{"0": 16}), "says that it has"},
		"strides":           {archive(dict("w", tensor("0", 4, 0, "I1\n", "I1\nI1\n"))+".", map[string]int{"0": 16}), "2 strides for 1 dimensions"},
		"deep":              {archive(strings.Repeat("(l", 300)+strings.Repeat("a", 299)+".", nil), "deep within each other"},
		"deep objects":      {archive(strings.Repeat("cx\ny\n)R", 300)+strings.Repeat("b", 299)+".", nil), "deep within each other"},
		"extension":         {archive("\x82\x01.", nil), "needs what is not in the file"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := torchsave.ReadArchive(bytes.NewReader(test.content), int64(len(test.content)))
			assert.ErrorContains(t, err, test.want)
		})
	}
}

func archiveOf(names ...string) []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, name := range names {
		_, _ = z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
	}
	_ = z.Close()
	return b.Bytes()
}

// An object may hold itself, and two things that are each in two others, and so on.
func TestArchivesOfCycles(t *testing.T) {
	for _, pickle := range []string{
		"(lp0\ng0\na.", "(dp0\nS'a'\ng0\ns.", "cx\ny\n)Rp0\ng0\nb.",
		"ctorch._utils\n_rebuild_parameter\n(lp0\nRp1\n0g0\ng1\na.",
		"ctorch._tensor\n_rebuild_from_type_v2\n(lp0\nctorch._tensor\n_rebuild_from_type_v2\nag0\nag0\nag0\naR.",
	} {
		content := archive(pickle, nil)
		f, err := torchsave.ReadArchive(bytes.NewReader(content), int64(len(content)))
		if err == nil {
			assert.Empty(t, f.Tensors, pickle)
		}
	}
	wide := strings.Builder{}
	wide.WriteString("(lp0\n")
	for i := range 100 {
		fmt.Fprintf(&wide, "0(lp%d\ng%d\nag%d\na", i+1, i, i)
	}
	content := archive(wide.String()+".", nil)
	_, err := torchsave.ReadArchive(bytes.NewReader(content), int64(len(content)))
	assert.NoError(t, err)
}

// Time and memory follow the file's size where much refers to one thing.
func TestArchivesOfOneThingInMany(t *testing.T) {
	const many = 60_000
	var wide strings.Builder
	wide.WriteString("cx\ny\np7\n0(lp5\n0(dp8\n(")
	for i := range many {
		fmt.Fprintf(&wide, "I%d\ng5\n", i)
	}
	wide.WriteString("u0(")
	chain := "ctorch._utils\n_rebuild_parameter\np7\n0(lp6\n0" + strings.Repeat("g7\n(g6\ntRp6\n0", 200) + "("
	key := "0S'" + strings.Repeat("k", 5000) + "'\np2\n0("
	for name, test := range map[string]struct{ pickle, want string }{
		"state":      {wide.String() + strings.Repeat("h\x07)Rh\x08b", many) + "t.", ""},
		"modules":    {wide.String() + strings.Repeat("h\x07)R}\x8c\x08_modulesh\x08sb", many) + "t.", ""},
		"parameters": {chain + strings.Repeat("h\x06", 10*many) + "t.", "too large"},
		"a long key": {tensor("0", 4, 0, "I4\n", "I1\n") + "p1\n" + key + strings.Repeat("}h\x02h\x01s", many) + "t.", "too large"},
	} {
		content := archive(test.pickle, map[string]int{"0": 16})
		f, err := torchsave.ReadArchive(bytes.NewReader(content), int64(len(content)))
		if test.want != "" {
			assert.ErrorContains(t, err, test.want, name)
			continue
		}
		require.NoError(t, err, name)
		assert.Empty(t, f.Tensors, name)
	}
}

func TestMetadataOfHostileSizes(t *testing.T) {
	object := func(class string, fields ...string) string {
		return "ctorch.distributed.checkpoint.metadata\n" + class + "\n)R" + dict(fields...) + "b"
	}
	chunk := object("ChunkStorageMetadata", "sizes", ")")
	properties := object("TensorProperties", "dtype", "ctorch\nfloat32\n")
	tensor := object("TensorStorageMetadata", "properties", properties, "size", "(I2\nt", "chunks", "(l"+chunk+"a"+chunk+"a")
	content := object("Metadata", "state_dict_metadata", dict("w", tensor)) + "."
	_, err := torchsave.ReadMetadata(strings.NewReader(content), int64(len(content)))
	assert.ErrorContains(t, err, `tensor "w": a chunk of it has 0 dimensions, and the tensor 1`)

	// Many tensors may have the same path of many keys.
	const many = 60_000
	all := func(value string) string {
		var b strings.Builder
		for i := range many {
			fmt.Fprintf(&b, "I%d\n%s", i, value)
		}
		return "}(" + b.String() + "u"
	}
	tensor = object("TensorStorageMetadata", "properties", properties, "size", "(I0\nt", "chunks", ")") + "p3\n0"
	keys := "(" + strings.Repeat("K\x01", many) + "tp4\n0"
	content = tensor + keys + object("Metadata", "state_dict_metadata", all("g3\n"), "planner_data", all("g4\n")) + "."
	_, err = torchsave.ReadMetadata(strings.NewReader(content), int64(len(content)))
	assert.ErrorContains(t, err, "too large")
}

func TestMetadataSaysWhatIsWrong(t *testing.T) {
	whole := string(read(t, "dcp_model/.metadata"))
	for name, test := range map[string]struct{ content, want string }{
		"empty":          {"", "torn"},
		"cut":            {whole[:1000], "torn"},
		"another pickle": {"\x80\x04}.", "no pickle of torch.distributed.checkpoint's Metadata"},
		"another class":  {strings.Replace(whole, "Metadata", "Metabata", 1), "no pickle of torch.distributed.checkpoint's Metadata"},
		"no tensors":     {strings.Replace(whole, "state_dict_metadata", "state_dict_metabata", 1), "state_dict_metadata is missing"},
		"other chunks":   {strings.Replace(whole, "K\x21K\x11\x86", "K\x22K\x11\x86", 1), `its chunks hold 561 of the 578 elements of [34 17]`},
		"other dtype":    {strings.Replace(whole, "\x8c\x05torch\x94\x8c\x08bfloat16", "\x8c\x05tarch\x94\x8c\x08bfloat16", 1), "its properties have no dtype"},
	} {
		_, err := torchsave.ReadMetadata(strings.NewReader(test.content), int64(len(test.content)))
		assert.ErrorContains(t, err, test.want, name)
	}
}

// fuzzed reads a file and checks that it took no more memory than a file of this size has reason to.
func fuzzed(t *testing.T, content []byte, read func(io.ReaderAt, int64) (*torchsave.File, error)) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f, err := read(bytes.NewReader(content), int64(len(content)))
	runtime.ReadMemStats(&after)
	if heap := int64(after.TotalAlloc - before.TotalAlloc); heap > int64(16<<20+1024*len(content)) {
		t.Fatalf("%d bytes allocated for a file of %d", heap, len(content))
	}
	if err != nil {
		return
	}
	names := map[string]bool{}
	for _, name := range f.Names {
		names[name] = true
	}
	for _, tensor := range f.Tensors {
		if tensor.Bytes < 0 || tensor.Elements < 0 || !names[tensor.Name] {
			t.Fatalf("%+v", tensor)
		}
	}
}

func FuzzReadArchive(f *testing.F) {
	for _, name := range []string{"views.pt", "quantized.pt", "state_dict.pt"} {
		f.Add(read(f, name))
	}
	f.Add(archive(dict("w", tensor("0", 4, 0, "I2\nI2\n", "I2\nI1\n"))+".", map[string]int{"0": 16}))
	f.Fuzz(func(t *testing.T, content []byte) { fuzzed(t, content, torchsave.ReadArchive) })
}

// FuzzDataPickle changes what is in an archive, whose checksums FuzzReadArchive hardly ever meets.
func FuzzDataPickle(f *testing.F) {
	f.Add(dict("w", tensor("0", 4, 0, "I2\nI2\n", "I2\nI1\n"), "v", tensor("1", 1, 0, "", "")) + ".")
	f.Add("ctorch._tensor\n_rebuild_from_type_v2\n(lp0\nctorch._tensor\n_rebuild_from_type_v2\nag0\nag0\nag0\naR.")
	f.Fuzz(func(t *testing.T, pickle string) {
		fuzzed(t, archive(pickle, map[string]int{"0": 16, "1": 4}), torchsave.ReadArchive)
	})
}

func FuzzReadMetadata(f *testing.F) {
	f.Add(read(f, "dcp_model/.metadata"))
	f.Fuzz(func(t *testing.T, content []byte) { fuzzed(t, content, torchsave.ReadMetadata) })
}
