package tape

// seen is the number of keys that so many new ones and those in the cache make.
func (t *Tape) Seen(keys int) int {
	if t.Cfg.Cache == nil || t.Uncached {
		return keys
	}
	return max(keys, t.Cfg.Cache.Context)
}
