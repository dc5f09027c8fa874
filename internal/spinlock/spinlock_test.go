package spinlock

import (
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestOneAtATime(t *testing.T) {
	for _, goroutines := range []int{1, 2, 64} {
		var (
			m    Mutex
			n    int
			wg   sync.WaitGroup
			each = 20_000 / goroutines
		)
		for i := range goroutines {
			wg.Go(func() {
				for j := range each {
					m.Lock()
					n++
					if (i+j)%1000 == 0 {
						runtime.Gosched() // the owner may have to wait
					}
					m.Unlock()
				}
			})
		}
		wg.Wait()
		assert.Equal(t, goroutines*each, n)
		assert.Zero(t, m.state.Load())
		assert.False(t, m.line.taken.Load())
	}
}

// until waits for what other goroutines do.
func until(done func() bool) {
	for !done() {
		runtime.Gosched()
	}
}

// TestWhoAskedIsNext: the goroutine that held the lock does not get it again before one that
// has waited, whether that is asleep by now or not.
func TestWhoAskedIsNext(t *testing.T) {
	for _, has := range []uint32{asked, asleep} {
		var m Mutex
		var order []string
		m.Lock()
		done := make(chan struct{})
		go func() {
			defer close(done)
			m.Lock()
			order = append(order, "waiter")
			m.Unlock()
		}()
		until(func() bool { return m.state.Load()&has != 0 })
		m.Unlock()
		m.Lock()
		order = append(order, "owner")
		m.Unlock()
		<-done
		assert.Equal(t, []string{"waiter", "owner"}, order)
		assert.Zero(t, m.state.Load())
	}
}

// TestInTheOrderOfTheirComing: no goroutine overtakes those that wait in line.
func TestInTheOrderOfTheirComing(t *testing.T) {
	var (
		m     Mutex
		order []int
		wg    sync.WaitGroup
	)
	m.Lock()
	for i := range 10 {
		wg.Go(func() {
			m.Lock()
			order = append(order, i)
			m.Unlock()
		})
		until(func() bool {
			m.line.mu.Lock()
			defer m.line.mu.Unlock()
			return m.line.taken.Load() && len(m.line.behind) == i
		})
	}
	m.Unlock()
	wg.Wait()
	assert.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, order)
}

func TestUnlockOfWhatIsNotLocked(t *testing.T) {
	require.Panics(t, func() { new(Mutex).Unlock() })
	var m Mutex
	m.state.Store(asked)
	require.Panics(t, m.Unlock)
}

func TestLongest(t *testing.T) {
	var m Mutex
	if _, known := m.Longest(); !known {
		t.Skip("only with the tag lockprobe, on Linux")
	}
	m.Forget()
	m.Lock()
	for range 1000 {
		pause(10_000)
	}
	m.Unlock()
	h, _ := m.Longest()
	assert.Contains(t, h.String(), "spinlock.TestLongest")
	m.Forget()
	m.Lock()
	pause(1)
	m.Unlock()
	short, _ := m.Longest()
	assert.Less(t, short.Time, h.Time)
}
