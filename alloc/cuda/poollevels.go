package cuda

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Stats asks the driver how much of the pool callers use, and how much memory the pool holds. The
// error is alloc.ErrClosed, or the driver's.
func (p *pool) Stats() (used, reserved alloc.Bytes, err error) {
	err = p.do(func() error {
		for key, value := range map[int]*alloc.Bytes{poolUsed: &used, poolReserved: &reserved} {
			n, err := p.dev.driver.poolAttribute(p.pool, key)
			if err != nil {
				return err
			}
			*value = alloc.Bytes(n)
		}
		return nil
	})
	if err != nil {
		return 0, 0, fmt.Errorf("levels of %v: %w", p, mapped(err))
	}
	return used, reserved, nil
}

// Reserved returns what the pool holds from the driver: in callers' hands, or free. The error
// is alloc.ErrClosed, or the driver's.
func (p *pool) Reserved() (alloc.Bytes, error) {
	_, reserved, err := p.Stats()
	return reserved, err
}

// SetReleaseThreshold changes PoolConfig.ReleaseThreshold. math.MaxInt64 keeps everything.
// The error is alloc.ErrClosed, or the driver's.
func (p *pool) SetReleaseThreshold(n alloc.Bytes) error {
	if n < 0 {
		return fmt.Errorf("%w of %d bytes: a release threshold is 0 or more", alloc.ErrSize, n)
	}
	return p.set("release threshold of", map[int]uint64{poolReleaseThreshold: uint64(n)})
}

func (p *pool) set(what string, attributes map[int]uint64) error {
	err := p.do(func() error {
		for key, value := range attributes {
			if err := p.dev.driver.setPoolAttribute(p.pool, key, value); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s %v: %w", what, p, mapped(err))
	}
	return nil
}

// Trim gives free memory back to the driver until the pool holds at most keep bytes. Memory that
// queued work still uses is not free: wait for the streams first. The error is alloc.ErrClosed, or
// the driver's.
func (p *pool) Trim(keep alloc.Bytes) error {
	err := p.do(func() error { return p.dev.driver.trimPool(p.pool, int64(max(keep, 0))) })
	if err != nil {
		return fmt.Errorf("trim %v to %v: %w", p, keep, mapped(err))
	}
	return nil
}
