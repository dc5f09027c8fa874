package nvml

// asker has a sampler ask the devices, in a goroutine of its own: a call into a
// driver that hangs cannot be ended, and nothing but this goroutine waits for it.
type asker struct {
	asks    chan struct{}
	answers chan answer
	waiting bool // an answer is still to come; of the goroutine that asks
}

// answer is what a sampler returned. It is valid until the next ask.
type answer struct {
	rows     []row
	remarks  []remark
	failures int
}

func newAsker() *asker {
	return &asker{asks: make(chan struct{}, 1), answers: make(chan answer, 1)}
}

func (a *asker) run(s *sampler) {
	for range a.asks {
		rows, remarks := s.sample()
		a.answers <- answer{rows, remarks, s.failures}
	}
}

// ask begins a sample. No other may be under way.
func (a *asker) ask() {
	a.waiting = true
	a.asks <- struct{}{}
}

func (a *asker) pending() bool { return a.waiting }
