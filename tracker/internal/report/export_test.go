package report

// ErrNoReturn and MaxLeft are what tests of other packages' writers look for.
var (
	ErrNoReturn = errNoReturn
	MaxLeft     = maxLeft
)

// Queues is the number of queues that writers have now, and of calls of Write that goroutines are in.
func Queues() (queues, inside int) { return len(writers.queues), len(writers.inside) }
