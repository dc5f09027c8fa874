// Package families has the table of all model families. It stands above the packages that define them, so that none of
// these needs to know the others.
package families

import (
	"slices"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family/diffusion"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family/encoder"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family/seq2seq"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family/vision"
)

// Table returns the table. It is made once, when it is first needed.
var Table = sync.OnceValue(func() *family.Table {
	return family.NewTable(slices.Concat(family.Decoders, encoder.Families, seq2seq.Families, vision.Families, diffusion.Families)...)
})
