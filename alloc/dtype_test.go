package alloc_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// dtypes is written out apart from the code: what PyTorch, NumPy (ml_dtypes for
// names longer than two) and safetensors call each type.
var dtypes = []struct {
	dtype                     alloc.DType
	bits                      int
	torch, numpy, safetensors string
}{
	{alloc.Bool, 8, "bool", "b1", "BOOL"},
	{alloc.Int4, 4, "int4", "int4", ""},
	{alloc.Int8, 8, "int8", "i1", "I8"},
	{alloc.Int16, 16, "int16", "i2", "I16"},
	{alloc.Int32, 32, "int32", "i4", "I32"},
	{alloc.Int64, 64, "int64", "i8", "I64"},
	{alloc.Uint8, 8, "uint8", "u1", "U8"},
	{alloc.Uint16, 16, "uint16", "u2", "U16"},
	{alloc.Uint32, 32, "uint32", "u4", "U32"},
	{alloc.Uint64, 64, "uint64", "u8", "U64"},
	{alloc.Float4, 4, "float4_e2m1fn_x2", "float4_e2m1fn", "F4"},
	{alloc.Float8E4M3, 8, "float8_e4m3fn", "float8_e4m3fn", "F8_E4M3"},
	{alloc.Float8E5M2, 8, "float8_e5m2", "float8_e5m2", "F8_E5M2"},
	{alloc.Float16, 16, "float16", "f2", "F16"},
	{alloc.BFloat16, 16, "bfloat16", "bfloat16", "BF16"},
	{alloc.Float32, 32, "float32", "f4", "F32"},
	{alloc.Float64, 64, "float64", "f8", "F64"},
	{alloc.Complex64, 64, "complex64", "c8", "C64"},
	{alloc.Complex128, 128, "complex128", "c16", "C128"},
}

func TestDTypeSpellings(t *testing.T) {
	for _, test := range dtypes {
		assert.Equal(t, test.bits, test.dtype.Bits(), test.torch)
		assert.Equal(t, test.torch, test.dtype.String())
		spellings := []string{test.torch, "torch." + test.torch, test.numpy, "<" + test.numpy, "=" + test.numpy, "|" + test.numpy, ">" + test.numpy}
		if test.safetensors != "" {
			spellings = append(spellings, test.safetensors)
		}
		for _, spelling := range spellings {
			got, err := alloc.ParseDType(spelling)
			if assert.NoError(t, err, spelling) {
				assert.Equal(t, test.dtype, got, spelling)
			}
		}
	}
	assert.Zero(t, alloc.DType(len(dtypes)+1).Bits(), "the table above has all of them")
}

func TestDTypeAliases(t *testing.T) {
	for name, want := range map[string]alloc.DType{
		"half": alloc.Float16, "float": alloc.Float32, "double": alloc.Float64,
		"short": alloc.Int16, "int": alloc.Int32, "long": alloc.Int64,
		"cfloat": alloc.Complex64, "cdouble": alloc.Complex128, "torch.half": alloc.Float16,
		"?": alloc.Bool, "I4": alloc.Int4, "float8_e4m3": alloc.Float8E4M3, "float4": alloc.Float4,
	} {
		got, err := alloc.ParseDType(name)
		if assert.NoError(t, err, name) {
			assert.Equal(t, want, got, name)
		}
	}
}

func TestParseDTypeRefuses(t *testing.T) {
	for _, name := range []string{"", "torch.", "<", "<float32", "<<f4", "f3", "string", "Float32", "bool_", " f4", "<F32", "torch.torch.int8"} {
		d, err := alloc.ParseDType(name)
		assert.ErrorContains(t, err, "not a name of PyTorch, NumPy or safetensors", "%q", name)
		assert.Zero(t, d)
	}
}

func TestInvalidDType(t *testing.T) {
	for _, d := range []alloc.DType{0, 200} {
		assert.Zero(t, d.Bits())
		_, err := d.MarshalText()
		assert.Error(t, err)
	}
	assert.Equal(t, "DType(0)", alloc.DType(0).String())
}

func TestDTypeJSON(t *testing.T) {
	for _, test := range dtypes {
		text, err := json.Marshal(test.dtype)
		require.NoError(t, err)
		assert.Equal(t, `"`+test.torch+`"`, string(text))
		var got alloc.DType
		require.NoError(t, json.Unmarshal(text, &got))
		assert.Equal(t, test.dtype, got)
	}
	got := alloc.Int8
	assert.Error(t, json.Unmarshal([]byte(`"nothing"`), &got))
	assert.Equal(t, alloc.Int8, got, "a failed read changes nothing")
}

type half uint16

func (half) DType() alloc.DType { return alloc.Float16 }

type token int32

func TestDTypeOf(t *testing.T) {
	for want, got := range map[alloc.DType]alloc.DType{
		alloc.Bool: alloc.DTypeOf[bool](), alloc.Int8: alloc.DTypeOf[int8](), alloc.Int16: alloc.DTypeOf[int16](),
		alloc.Int32: alloc.DTypeOf[int32](), alloc.Int64: alloc.DTypeOf[int64](), alloc.Uint8: alloc.DTypeOf[uint8](),
		alloc.Uint16: alloc.DTypeOf[uint16](), alloc.Uint32: alloc.DTypeOf[uint32](), alloc.Uint64: alloc.DTypeOf[uint64](),
		alloc.Float32: alloc.DTypeOf[float32](), alloc.Float64: alloc.DTypeOf[float64](),
		alloc.Complex64: alloc.DTypeOf[complex64](), alloc.Complex128: alloc.DTypeOf[complex128](),
		alloc.Float16: alloc.DTypeOf[half](),
	} {
		assert.Equal(t, want, got)
	}
	assert.Equal(t, alloc.Int32, alloc.DTypeOf[token]())
	assert.Contains(t, []alloc.DType{alloc.Int32, alloc.Int64}, alloc.DTypeOf[int]())
	assert.Contains(t, []alloc.DType{alloc.Uint32, alloc.Uint64}, alloc.DTypeOf[uint]())
}

func FuzzParseDType(f *testing.F) {
	for _, seed := range []string{"float32", "torch.half", "<f4", "BF16", "<<f4", "|", "?"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		d, err := alloc.ParseDType(name)
		require.Equal(t, err == nil, d.Bits() > 0)
		if err != nil {
			return
		}
		again, err := alloc.ParseDType(d.String())
		require.NoError(t, err)
		require.Equal(t, d, again)
	})
}
