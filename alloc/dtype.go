package alloc

import (
	"fmt"
	"math/bits"
	"reflect"
	"strings"
)

// DType is the type of a tensor's elements. The zero DType is not valid.
type DType uint8

// The element types. Int4 and Float4 are packed, two elements a byte.
const (
	Bool DType = iota + 1
	Int4
	Int8
	Int16
	Int32
	Int64
	Uint8
	Uint16
	Uint32
	Uint64
	Float4     // e2m1
	Float8E4M3 // e4m3fn, finite only
	Float8E5M2
	Float16
	BFloat16
	Float32
	Float64
	Complex64
	Complex128
)

// dtypes spells each type as PyTorch does (torch.NAME), as NumPy does (its
// type string without the byte order, or the name that ml_dtypes registers),
// and as safetensors does. An empty spelling means that the format has no such
// type.
var dtypes = [...]struct {
	bits                      int
	torch, numpy, safetensors string
	alias                     []string
}{
	Bool:       {8, "bool", "b1", "BOOL", []string{"?"}},
	Int4:       {4, "int4", "int4", "", []string{"I4"}},
	Int8:       {8, "int8", "i1", "I8", nil},
	Int16:      {16, "int16", "i2", "I16", []string{"short"}},
	Int32:      {32, "int32", "i4", "I32", []string{"int"}},
	Int64:      {64, "int64", "i8", "I64", []string{"long"}},
	Uint8:      {8, "uint8", "u1", "U8", nil},
	Uint16:     {16, "uint16", "u2", "U16", nil},
	Uint32:     {32, "uint32", "u4", "U32", nil},
	Uint64:     {64, "uint64", "u8", "U64", nil},
	Float4:     {4, "float4_e2m1fn_x2", "float4_e2m1fn", "F4", []string{"float4", "float4_e2m1"}},
	Float8E4M3: {8, "float8_e4m3fn", "float8_e4m3fn", "F8_E4M3", []string{"float8_e4m3"}},
	Float8E5M2: {8, "float8_e5m2", "float8_e5m2", "F8_E5M2", nil},
	Float16:    {16, "float16", "f2", "F16", []string{"half"}},
	BFloat16:   {16, "bfloat16", "bfloat16", "BF16", nil},
	Float32:    {32, "float32", "f4", "F32", []string{"float"}},
	Float64:    {64, "float64", "f8", "F64", []string{"double"}},
	Complex64:  {64, "complex64", "c8", "C64", []string{"cfloat"}},
	Complex128: {128, "complex128", "c16", "C128", []string{"cdouble"}},
}

// Bits returns the size of one element in bits; 0 for a type that is not valid.
func (d DType) Bits() int {
	if int(d) >= len(dtypes) {
		return 0
	}
	return dtypes[d].bits
}

// String returns PyTorch's name of the type without its "torch." prefix.
func (d DType) String() string {
	if d.Bits() == 0 {
		return fmt.Sprintf("DType(%d)", uint8(d))
	}
	return dtypes[d].torch
}

// ParseDType reads any of the spellings of PyTorch ("torch.float32", "half"), NumPy ("<f4",
// "float32") and safetensors ("F32"). Where PyTorch and NumPy mean different types by one word
// ("int", "float"), it is PyTorch's. Any other name is an error.
func ParseDType(name string) (DType, error) {
	if d, ok := dtypeByName[strings.TrimPrefix(name, "torch.")]; ok {
		return d, nil
	}
	if len(name) > 1 && strings.ContainsRune("<>=|", rune(name[0])) {
		if d, ok := dtypeByName[name[1:]]; ok && dtypes[d].numpy == name[1:] {
			return d, nil
		}
	}
	return 0, fmt.Errorf("parse dtype %q: not a name of PyTorch, NumPy or safetensors that has a size, such as float32, <f4 or F32", name)
}

var dtypeByName = func() map[string]DType {
	names := make(map[string]DType)
	for i, t := range dtypes {
		for _, name := range append([]string{t.torch, t.numpy, t.safetensors}, t.alias...) {
			if name != "" {
				names[name] = DType(i)
			}
		}
	}
	return names
}()

// MarshalText writes the type as String does.
func (d DType) MarshalText() ([]byte, error) {
	if d.Bits() == 0 {
		return nil, fmt.Errorf("write dtype: %v is not a type", d)
	}
	return []byte(dtypes[d].torch), nil
}

// UnmarshalText reads the type as ParseDType does.
func (d *DType) UnmarshalText(text []byte) error {
	parsed, err := ParseDType(string(text))
	if err != nil {
		return err
	}
	*d = parsed
	return nil
}

// Element is the Go types that elements can have.
type Element interface {
	~bool | ~int8 | ~int16 | ~int32 | ~int64 | ~int |
		~uint8 | ~uint16 | ~uint32 | ~uint64 | ~uint |
		~float32 | ~float64 | ~complex64 | ~complex128
}

// DTypeOf returns the DType that T is stored as. For a type that Go lacks, declare an integer
// type of its size with a method DType() DType:
//
//	type Half uint16
//
//	func (Half) DType() alloc.DType { return alloc.Float16 }
func DTypeOf[T Element]() DType {
	var zero T
	if own, ok := any(zero).(interface{ DType() DType }); ok {
		return own.DType()
	}
	return dtypeOfKind[reflect.TypeFor[T]().Kind()]
}

var dtypeOfKind = [...]DType{
	reflect.Bool: Bool,
	reflect.Int8: Int8, reflect.Int16: Int16, reflect.Int32: Int32, reflect.Int64: Int64,
	reflect.Uint8: Uint8, reflect.Uint16: Uint16, reflect.Uint32: Uint32, reflect.Uint64: Uint64,
	reflect.Float32: Float32, reflect.Float64: Float64,
	reflect.Complex64: Complex64, reflect.Complex128: Complex128,
	reflect.Int:  Int32 + bits.UintSize/64, // Int64 where an int has 64 bits
	reflect.Uint: Uint32 + bits.UintSize/64,
}
