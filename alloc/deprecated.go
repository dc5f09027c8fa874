package alloc

// Empty calls Trim.
//
// Deprecated: the name reads as a question; call Trim, whose errors it returns.
func (c *Cache) Empty() (Bytes, error) { return c.Trim() }
