package alloctest

import (
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
)

// NewCache returns a cache over a device. It ends the test if a setting is not valid.
func NewCache(t require.TestingT, dev alloc.Device, cfg cache.Config) *cache.Cache {
	c, err := cache.New(dev, cfg)
	require.NoError(t, err)
	return c
}
