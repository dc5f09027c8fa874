package setting

// Kernel is how attention computes its scores.
type Kernel uint8

// The kernels, by the names that transformers has for them (attn_implementation). Attention that
// no kernel does, such as with capped scores or sinks, stays as it is.
const (
	KernelUnknown  Kernel = iota // SDPA, unless the layers say otherwise
	SDPA                         // "sdpa": scaled_dot_product_attention, whose kernels hold no scores
	FlashAttention               // "flash_attention_2": SDPA that needs no masks for its windows
	EagerAttention               // "eager": elementary operations, which hold the scores
)

// String is the kernel's name.
func (k Kernel) String() string {
	switch k {
	case SDPA:
		return "sdpa"
	case FlashAttention:
		return "flash"
	case EagerAttention:
		return "eager"
	}
	return "unknown"
}
