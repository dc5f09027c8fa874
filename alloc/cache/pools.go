package cache

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// maxStreams is how many streams can have segments at one time.
const maxStreams = 1<<16 - 1

// pools holds the inactive blocks of one stream.
type pools struct {
	stream    alloc.Stream
	segments  int // that the stream has
	small     bins
	large     tree
	smallTree tree                      // in place of small where there are settings: blocks of expandable segments may be large
	holes     [alloc.LargePool + 1][]id // the unmapped blocks of each pool, by address
}

// largest returns the size of the largest block, 0 if there is none.
func (p *pools) largest() alloc.Bytes {
	return max(p.small.largest(), p.smallTree.largest(), p.large.largest())
}

// streams are those that have segments, except the default stream. A number is
// used again when its stream's last segment has gone.
type streams struct {
	pools  []*pools // number n is at n-1
	number map[alloc.Stream]streamID
	unused []streamID
}

func (o *streams) find(s alloc.Stream) *pools {
	if id, ok := o.number[s]; ok {
		return o.pools[id-1]
	}
	return nil
}

// tree returns a pool of some settings' cache: its small blocks are in no bins.
func (p *pools) tree(pool alloc.Pool) *tree {
	if pool == alloc.SmallPool {
		return &p.smallTree
	}
	return &p.large
}
