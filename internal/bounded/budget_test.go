package bounded_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
)

const mib = 1 << 20

// whole returns a reader of a text of 8 MiB, all of it read, that counts in a share.
func whole(t *testing.T, of *bounded.Budget, share *bounded.Share) *bounded.Reader {
	r, err := bounded.NewReaderWithin(bytes.NewReader(make([]byte, 8*mib)), bounded.Limits{Memory: of.Size(), Share: share})
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, r)
	require.NoError(t, err)
	return r
}

// TestReadersShareABudget: two readers get no more than there is for one, and none waits for memory while it holds some.
func TestReadersShareABudget(t *testing.T) {
	b := bounded.NewBudget(16 * mib)
	one, two := b.Wait(2*mib), b.Wait(mib)
	r1, r2 := whole(t, b, one), whole(t, b, two)
	require.NoError(t, r1.Use(10*mib))
	require.NoError(t, r2.Use(6*mib))
	require.ErrorIs(t, r2.Use(1), bounded.ErrShared)
	assert.True(t, two.Short())
	two.Release()
	require.NoError(t, r1.Use(6*mib), "what another gave back")
	assert.False(t, one.Short())
	err := r1.Use(1)
	require.ErrorIs(t, err, bounded.ErrTooLarge, "more than the whole budget")
	assert.NotErrorIs(t, err, bounded.ErrShared)
	one.Release()
	r := whole(t, b, b.Wait(1<<40))
	require.NoError(t, r.Use(16*mib), "at most all of it")
}

// TestSharesInTurn: a reader that waits for all of the budget gets it, however many small ones come later.
func TestSharesInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bounded.NewBudget(4 * mib)
		first := b.Wait(mib)
		var mu sync.Mutex
		var order []int
		var all sync.WaitGroup
		for i, bytes := range []int64{4 * mib, mib, mib} {
			all.Go(func() {
				s := b.Wait(bytes)
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				s.Release()
			})
			synctest.Wait()
			assert.Empty(t, order, "the first still holds a part")
		}
		first.Release()
		all.Wait()
		assert.Equal(t, 0, order[0])
		assert.Len(t, order, 3)
	})
}

// TestManyReadersShareABudget: whatever they take, together it is no more than there is.
func TestManyReadersShareABudget(t *testing.T) {
	const size = 1000
	b := bounded.NewBudget(size)
	var used atomic.Int64
	var all sync.WaitGroup
	for seed := range uint64(8) {
		all.Go(func() {
			r := rand.New(rand.NewPCG(seed, 1))
			for range 1000 {
				n := 1 + r.Int64N(size)
				s := b.Wait(n)
				assert.LessOrEqual(t, used.Add(n), int64(size))
				used.Add(-n)
				s.Release()
			}
		})
	}
	all.Wait()
	assert.Zero(t, used.Load())
}
