package tape

// WithLoss trains with a loss of what the layers return; what is served has none. A HeadLoss that
// has no sizes takes the place of the last layer, the head, which must be a Linear.
func WithLoss(l Layer) Option { return func(c *Config) { c.Loss = l } }
