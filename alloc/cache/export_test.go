package cache

// Waiting returns how many goroutines wait for the driver.
func (c *Cache) Waiting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.driver.waiting)
}
