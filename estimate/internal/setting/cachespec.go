package setting

import "github.com/gpumemtrack/gpumemtrack/alloc"

// CacheSpec is serving.CacheSpec.
type CacheSpec struct {
	Layer int
	Kind  string

	KVHeads   int
	HeadSize  int
	ValueSize int
	Window    int
	Source    int
	Latent    int
	Index     int

	Mixer         string
	Channels      int
	Groups        int
	GroupChannels int
	Kernel        int
	StateHeads    int
	HeadState     int
	StateType     alloc.DType
}

// The kinds of a CacheSpec.
const (
	Full      = "full"
	Sliding   = "sliding"
	Chunked   = "chunked"
	Latent    = "latent"
	Cross     = "cross"
	Recurrent = "recurrent"
)
