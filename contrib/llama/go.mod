// A module of its own, so that only programs that hold llama.cpp depend on it. A
// release replaces v0.0.0 by its own version; the replace below counts in this repository only.
module github.com/gpumemtrack/gpumemtrack/contrib/llama

go 1.26.0

require (
	github.com/ebitengine/purego v0.11.3
	github.com/gpumemtrack/gpumemtrack v0.0.0
	github.com/hybridgroup/yzma v1.28.0
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/NVIDIA/go-nvml v0.13.0-1 // indirect
	github.com/cilium/ebpf v0.22.0 // indirect
	github.com/go-json-experiment/json v1.27.2 // indirect
	github.com/ianlancetaylor/demangle v0.0.0-20260724033716-83e58baca724 // indirect
	github.com/jupiterrider/ffi v0.8.0 // indirect
	go.yaml.in/yaml/v3 v3.0.6 // indirect
	golang.org/x/arch v0.33.0 // indirect
	golang.org/x/sync v0.24.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace github.com/gpumemtrack/gpumemtrack => ../..
