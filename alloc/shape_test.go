package alloc_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

func TestShapeElements(t *testing.T) {
	for _, test := range []struct {
		shape alloc.Shape
		want  int64
	}{
		{nil, 1},
		{alloc.Shape{}, 1},
		{alloc.Shape{512}, 512},
		{alloc.Shape{64, 3, 3, 3}, 1728},
		{alloc.Shape{64, 0, 3}, 0},
		{alloc.Shape{math.MaxInt, math.MaxInt, 0}, 0}, // empty, however large the others
		{alloc.Shape{math.MaxInt}, math.MaxInt},
		{alloc.Shape{1 << 30, 1 << 30, 4}, 1 << 62},
	} {
		got, err := test.shape.Elements()
		require.NoError(t, err, "%v", test.shape)
		assert.Equal(t, test.want, got, "%v", test.shape)
	}
}

func TestShapeElementsRefuses(t *testing.T) {
	for _, test := range []struct {
		shape alloc.Shape
		want  string
	}{
		{alloc.Shape{2, -1}, "invalid shape (2, -1): dimension 1 is negative"},
		{alloc.Shape{0, -1}, "invalid shape (0, -1): dimension 1 is negative"},
		{alloc.Shape{1 << 30, 1 << 30, 8}, "invalid shape (1073741824, 1073741824, 8): the number of elements overflows 64 bits"},
		{alloc.Shape{1 << 30, 1 << 30, 1 << 30}, "invalid shape (1073741824, 1073741824, 1073741824): the number of elements overflows 64 bits"},
	} {
		_, err := test.shape.Elements()
		require.ErrorIs(t, err, alloc.ErrShape)
		assert.EqualError(t, err, test.want)
		_, err = test.shape.Bytes(alloc.Float32)
		assert.EqualError(t, err, test.want)
	}
}

func TestShapeBytes(t *testing.T) {
	for _, test := range []struct {
		shape alloc.Shape
		dtype alloc.DType
		want  alloc.Bytes
	}{
		{alloc.Shape{}, alloc.Float32, 4},
		{alloc.Shape{64, 3, 3, 3}, alloc.Float32, 6912},
		{alloc.Shape{5}, alloc.Int4, 3}, // packed, rounded up
		{alloc.Shape{6}, alloc.Float4, 3},
		{alloc.Shape{0}, alloc.Complex128, 0},
		{alloc.Shape{math.MaxInt}, alloc.Int8, math.MaxInt},
		{alloc.Shape{math.MaxInt}, alloc.Int4, math.MaxInt/2 + 1},
		{alloc.Shape{math.MaxInt / 16}, alloc.Complex128, math.MaxInt / 16 * 16},
	} {
		got, err := test.shape.Bytes(test.dtype)
		require.NoError(t, err, "%v %v", test.shape, test.dtype)
		assert.Equal(t, test.want, got, "%v %v", test.shape, test.dtype)
	}
	for _, test := range []struct {
		shape alloc.Shape
		dtype alloc.DType
		want  string
	}{
		{alloc.Shape{1 << 30, 1 << 30, 4}, alloc.Int16, "overflows"},
		{alloc.Shape{1 << 30, 1 << 29}, alloc.Complex128, "overflows"},
		{alloc.Shape{1 << 30, 1 << 30, 7}, alloc.Complex128, "overflows"},
		{alloc.Shape{1}, 0, "DType(0) is not an element type"},
		{alloc.Shape{0}, 200, "DType(200) is not an element type"},
	} {
		_, err := test.shape.Bytes(test.dtype)
		assert.ErrorContains(t, err, test.want, "%v %v", test.shape, test.dtype)
	}
}

func TestShapeString(t *testing.T) {
	for want, shape := range map[string]alloc.Shape{
		"()": {}, "(512,)": {512}, "(64, 3, 3, 3)": {64, 3, 3, 3}, "(0, -1)": {0, -1},
	} {
		assert.Equal(t, want, shape.String())
	}
	assert.Equal(t, "()", alloc.Shape(nil).String())
}

func TestShapeAppend(t *testing.T) {
	assert.Equal(t, "shape (1, 2)", string(alloc.Shape{1, 2}.Append([]byte("shape "))))
}

func TestParseShape(t *testing.T) {
	for in, want := range map[string]alloc.Shape{
		"()":            {},
		"":              {},
		" ( ) ":         {},
		"(512,)":        {512},
		"512":           {512},
		"(64, 3, 3, 3)": {64, 3, 3, 3},
		"64,3,3,3":      {64, 3, 3, 3},
		"64x3x3x3":      {64, 3, 3, 3},
		"64 x 3":        {64, 3},
		"(0, 7)":        {0, 7},
	} {
		got, err := alloc.ParseShape(in)
		if assert.NoError(t, err, "%q", in) {
			assert.Equal(t, want, got, "%q", in)
		}
	}
	for in, message := range map[string]string{
		"(1, 2":                       "missing ')'",
		"1, 2)":                       "is not a length",
		"1,,2":                        "is not a length",
		",":                           "is not a length",
		"(,)":                         "is not a length",
		"1x2,3":                       "is not a length",
		"a":                           "is not a length",
		"(1.5,)":                      "is not a length",
		"(2, -1)":                     "is negative",
		"9223372036854775808":         "is not a length",
		"2147483647x2147483647x4":     "overflows 64 bits",
		"(2147483647, 2147483647, 4)": "overflows 64 bits",
	} {
		_, err := alloc.ParseShape(in)
		assert.ErrorContains(t, err, message, "%q", in)
	}
}

func FuzzParseShape(f *testing.F) {
	for _, seed := range []string{"()", "(512,)", "(64, 3, 3, 3)", "64x3", "1,", "(9223372036854775807, 2)"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		shape, err := alloc.ParseShape(text)
		if err != nil {
			require.Nil(t, shape)
			return
		}
		_, err = shape.Elements()
		require.NoError(t, err, "what is read is valid")
		again, err := alloc.ParseShape(shape.String())
		require.NoError(t, err)
		require.Equal(t, shape, again)
	})
}
