package cache

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/spinlock"
)

// TestDriverIsLockedBeforePolling: a goroutine that is inside of an event does not wait for the driver, as whoever holds
// that may wait for the events.
func TestDriverIsLockedBeforePolling(t *testing.T) {
	polling := new(deviceLock)
	driver := driverLock{mu: new(spinlock.Mutex), polling: polling}
	require.NoError(t, polling.lock())
	locked, err := driver.lock(nil)
	require.ErrorIs(t, err, alloc.ErrReentrant)
	require.False(t, locked)
	polling.unlock()
	locked, err = driver.lock(nil)
	require.NoError(t, err)
	require.True(t, locked)
	require.NoError(t, polling.lock())
	polling.unlock()
	driver.unlock()
}
