package seq2seq

import "github.com/gpumemtrack/gpumemtrack/estimate/internal/family"

// Families are those of this package.
var Families = []*family.Family{
	BART, MBART, Marian, Pegasus, Blenderbot, BlenderbotSmall, M2M100, T5, Whisper, Qwen2Audio, Qwen2AudioEncoder,
}
