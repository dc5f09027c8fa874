// Package serving computes how many tokens and requests fit into the memory that an inference server leaves for its cache, by
// the server's own rules.
//
// A server allocates one pool for the keys, values and recurrent states of all requests when it starts, and cuts it into
// blocks. How many tokens the pool holds is not the sum over the layers: layers of different kinds share blocks, and
// engines round, pad and set tokens aside. So each engine has a planner of its own here.
//
//	file, err := checkpoint.Open("Qwen3-Next-80B-A3B-Instruct")
//	specs, err := file.CacheSpecs()
//	plan, err := serving.VLLM{MaxModelLen: 32768}.Plan(specs, 40*alloc.GiB)
//	fmt.Println(plan.Blocks, plan.Tokens, plan.Requests)
//
// The CacheSpecs of a model are a method of package checkpoint's files and of package zoo's models. All functions may be called from several
// goroutines.
package serving

import "github.com/gpumemtrack/gpumemtrack/alloc"

// The kinds of a CacheSpec.
const (
	Full      = "full"      // keys and values of all tokens
	Sliding   = "sliding"   // keys and values of the last Window tokens
	Chunked   = "chunked"   // keys and values of the tokens since the last multiple of the Window
	Latent    = "latent"    // one vector for each token in place of keys and values: multi-head latent attention
	Cross     = "cross"     // keys and values of what an encoder read
	Recurrent = "recurrent" // a state of fixed size, and the last inputs of a convolution
)

// CacheSpec is what one layer of a model keeps of a sequence, whichever engine runs it. A layer that keeps nothing of its own
// has none: one that uses the keys and values of an earlier layer, or an MLP. A layer with two parts has two, such as attention
// beside a mixer in Falcon-H1, or to the text and to an encoder's output in Whisper. Sizes are those of the whole model, in
// elements, before tensor parallelism divides them.
type CacheSpec struct {
	Layer int    // number of the model's layer, from 0
	Kind  string // Full, Sliding, Chunked, Latent, Cross or Recurrent

	KVHeads   int // heads of keys and values
	HeadSize  int // elements of one head's key
	ValueSize int // elements of one head's value
	Window    int // tokens that a token of a Sliding layer sees, itself included; length of a Chunked layer's chunks
	Source    int // Cross: tokens of the encoder's output; 0 means as many as the prompt has
	Latent    int // Latent: elements of the vector: rank of keys and values, and the part that rotates
	Index     int // Latent: elements of the key by which an indexer selects tokens; 0 means that there is no indexer

	// Mixer says which Recurrent layer it is: "mamba", "mamba2", "delta" (gated delta net, Qwen3-Next), "kda" (Kimi's delta
	// attention) or "conv" (short convolution, LFM2).
	Mixer         string
	Channels      int         // of the convolution, all groups included
	Groups        int         // mamba2: groups of heads that share a part of the Channels
	GroupChannels int         // mamba2: Channels of each group
	Kernel        int         // inputs that the convolution reads, that of the current token included
	StateHeads    int         // heads that have a state; 0 means that there is no state beside the convolution's inputs
	HeadState     int         // elements of one head's state
	StateType     alloc.DType // type of the state that the model's config.json wants; 0 means that it names none
}
