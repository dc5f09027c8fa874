package cache

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Memory returns VirtualMemory if the cache's segments are expandable, otherwise the kind of
// its device.
func (c *Cache) Memory() alloc.Memory {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Locked().Memory()
}

// Memory is Cache.Memory.
func (l Locked) Memory() alloc.Memory {
	if l.c.expands() {
		return alloc.VirtualMemory
	}
	return l.c.memory
}
