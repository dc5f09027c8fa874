package setting

import (
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Float32Parts names the parameters and buffers that stay in float32 where a narrower type is asked for, as
// from_pretrained of transformers loads them (modeling_utils.py of 5.24, _get_dtype_plan).
type Float32Parts struct {
	Float16 []Part32 // where float16 is asked for
	Always  []Part32 // where bfloat16 is, too
}

// Part32 matches the paths within a module that contain a text.
type Part32 struct {
	Within string // the path of a module; "" is the whole model
	Text   string
}

// Add adds the parts of a model that is the module of a larger one.
func (f *Float32Parts) Add(module string, of Float32Parts) {
	for _, p := range of.Float16 {
		f.Float16 = append(f.Float16, Part32{module, p.Text})
	}
	for _, p := range of.Always {
		f.Always = append(f.Always, Part32{module, p.Text})
	}
}

// Keeps reports whether the parameter or buffer of a module stays in float32 where the weights have the type d.
func (f Float32Parts) Keeps(d alloc.DType, module, name string) bool {
	if len(f.Float16)+len(f.Always) == 0 || d != alloc.Float16 && d != alloc.BFloat16 {
		return false
	}
	path := strings.TrimPrefix(module+"."+name, ".")
	for _, p := range f.Always {
		if p.matches(path) {
			return true
		}
	}
	if d == alloc.Float16 {
		for _, p := range f.Float16 {
			if p.matches(path) {
				return true
			}
		}
	}
	return false
}

func (p Part32) matches(path string) bool {
	if p.Within != "" && !strings.HasPrefix(path, p.Within+".") {
		return false
	}
	return strings.Contains(path, p.Text)
}
