package estimating

import (
	"errors"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/checkpoint"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// errorNames replaces the settings that errors of packages estimate and serving name. They stand with the words around them, since
// an error quotes files and models.
var errorNames = strings.NewReplacer(
	"a Tensor of Sharding that", "a --tp that", "KVConfig: a Batch of", "a --batch of", "a KVType of", "a --kv of", "KVType is", "--kv is",
	"and a Context of", "and a --seq of", "a Context of", "a --max-model-len of", "a Fraction of", "a --memory-fraction of", "MaxModelLen is", "--max-model-len is",
	"MaxRequests, or what", "--max-requests, or what", "DraftTokens with recurrent states needs MaxRequests", "--draft-tokens with recurrent states needs --max-requests",
	".stored (Stored): only the size of this part is known", ": --quantize cannot name it: only the size of this part is known",
	"sharding: Data is", "sharding: --replicas is", "sharding: Tensor is", "sharding: --tp is", "sharding: Pipeline is", "sharding: --pp is", "sharding: Experts is", "sharding: --ep is",
	"sharding: ZeRO is", "sharding: --zero is", "sharding: MicroBatches is", "sharding: --accumulate is", "leave Train out", "leave --train out",
	"Bucket is", "--reduce-bucket-size is", "and Reuse is", "and --max-reuse-distance is",
)

// flagged is an error of a library in the words of the command: it names flags in place of options.
type flagged struct{ error }

func (e flagged) Error() string { return plainly(e.error) }
func (e flagged) Unwrap() error { return e.error }

// plainly returns the text of an error with the names of flags. Of a family that is not known it leaves the words of packages out.
func plainly(err error) string {
	said := errorNames.Replace(err.Error())
	if unknown := checkpoint.ErrUnknownArchitecture; errors.Is(err, unknown) {
		said = strings.TrimPrefix(said, "checkpoint: ")
		said = strings.TrimPrefix(said, "architecture of the config file: ")
		said = strings.TrimSuffix(said, ": "+unknown.Error())
	}
	return said
}

// inFlags returns the error, or nil, with the names of flags.
func inFlags(err error) error {
	if err == nil {
		return nil
	}
	return flagged{err}
}

// many returns the word for one, or that for several.
func many(n int, one, several string) string {
	if n == 1 {
		return one
	}
	return several
}

// tokensOf counts tokens in words.
func tokensOf(n int) string { return text.Grouped(n) + many(n, " token", " tokens") }
