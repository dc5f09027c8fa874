package family

import (
	_ "embed"
	"slices"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/strictjson"
)

// peftJSON holds PEFT's tables of LoRA's targets by model_type; checkpoint/testdata/torch/lora.py writes it.
//
//go:embed lora.json
var peftJSON []byte

// PEFT holds a version's tables by model type (peft/utils/constants.py).
type PEFT struct {
	Version string              `json:"peft"`
	Targets map[string][]string `json:"targets"` // of LoRA by default
	Fused   map[string]string   `json:"fused"`   // the naming that the layers had which transformers has fused
	Namings map[string]setting.FusedLayers
}

// TablesOfPEFT returns PEFT's tables.
var TablesOfPEFT = sync.OnceValue(func() PEFT {
	var p PEFT
	if err := strictjson.Unmarshal(peftJSON, &p); err != nil {
		panic("lora.json: " + err.Error()) // it is part of the binary
	}
	return p
})

// Default returns the targets of LoRA that PEFT has by default for a type, or nil.
func (p PEFT) Default(name string) []string { return slices.Clone(p.Targets[name]) }

// FusedLayers returns how PEFT adapts the fused layers of a type; nil if it has none.
func (p PEFT) FusedLayers(name string) setting.FusedLayers { return p.Namings[p.Fused[name]] }
