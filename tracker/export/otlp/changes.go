package otlp

import (
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// delivered is what a server has of one source: the sums of all changes that it has taken.
//
// The next push has what changed since. So a push that failed is not lost: its changes are in the next one. An entry for each
// call site is all that is kept, however long the server does not answer.
type delivered struct {
	sites   map[siteKey]counts
	retired map[placeKey]mem.Tally
	until   time.Time // of the latest snapshot all of whose changes were taken
}

// siteKey identifies a call site of one source, in whose tables a tensor stays where it is.
type siteKey struct {
	placeKey
	tensor *tables.Tensor
}

// placeKey identifies the buffers of a place that a source no longer counts by shape.
type placeKey struct {
	stack   tables.StackID
	stream  alloc.Stream
	section string
	memory  alloc.Memory
}

// counts are numbers of buffers. A source may drop a call site and count it again from 0: moved are those before, until the
// sum of the place is delivered, which has them.
type counts struct{ live, total, moved int64 }

// change is how a call site differs from what the server has.
type change struct {
	placeKey
	tensor      *tables.Tensor // nil if the shape is not known
	live, total mem.Tally      // signed

	// What the server has once it has taken the change.
	site counts
	sum  mem.Tally // of the place, where tensor is nil
	in   []siteKey // whose moved buffers are in sum
}

// changes returns what changed since what was delivered. It does not alter d.
func (d *delivered) changes(s *snapshot.Snapshot) (all []change) {
	t := tables.Of(&s.Tables)
	moved := make(map[placeKey]*change)
	found := 0
	for i := range t.Sites {
		e := &t.Sites[i]
		key := keyOf(t, e)
		have, known := d.sites[key]
		if known {
			found++
		}
		now, before := counts{e.Live, e.Total, have.moved}, have.total
		if now.total < before {
			now.moved, before = now.moved+before, 0
		}
		if now != have {
			all = append(all, change{
				placeKey: key.placeKey, tensor: e.Tensor, site: now,
				live: e.Tensor.Tally(now.live - have.live), total: e.Tensor.Tally(now.total - before),
			})
		}
		if now.moved != 0 {
			move(moved, key, now.moved)
		}
	}
	if found < len(d.sites) {
		all = d.absent(t, all, moved)
	}
	for _, e := range t.Retired {
		key := placeOf(t, e.Place, 0, e.Memory)
		c := moved[key]
		if c == nil {
			c = &change{placeKey: key}
		}
		delete(moved, key)
		c.sum, c.total = e.Total, c.total.Add(e.Total.Sub(d.retired[key]))
		if !c.total.IsZero() || c.in != nil {
			all = append(all, *c)
		}
	}
	for key, c := range moved { // the source keeps no sum of the place
		c.sum = d.retired[key]
		all = append(all, *c)
	}
	return all
}

// absent appends the end of the call sites that the snapshot does not have.
func (d *delivered) absent(t *tables.Tables, all []change, moved map[placeKey]*change) []change {
	present := make(map[siteKey]bool, len(t.Sites))
	for i := range t.Sites {
		present[keyOf(t, &t.Sites[i])] = true
	}
	for key, have := range d.sites {
		if present[key] {
			continue
		}
		if have.live != 0 || have.total != 0 {
			all = append(all, change{
				placeKey: key.placeKey, tensor: key.tensor, site: counts{moved: have.moved + have.total}, live: key.tensor.Tally(-have.live),
			})
		}
		move(moved, key, have.moved+have.total)
	}
	return all
}

// move takes buffers of a call site off what the sum of its place has in addition to what was delivered.
func move(moved map[placeKey]*change, key siteKey, buffers int64) {
	place := key.placeKey
	place.stream = 0 // sums have none
	c := moved[place]
	if c == nil {
		c = &change{placeKey: place}
		moved[place] = c
	}
	c.total = c.total.Sub(key.tensor.Tally(buffers))
	c.in = append(c.in, key)
}

func keyOf(t *tables.Tables, e *tables.SiteEntry) siteKey {
	return siteKey{placeOf(t, e.Place, e.Stream, e.Tensor.Memory), e.Tensor}
}

func placeOf(t *tables.Tables, p tables.Place, stream uint8, memory alloc.Memory) placeKey {
	return placeKey{stack: p.Stack, stream: tables.StreamOf(t.Streams, stream), section: t.Sections[p.Section], memory: memory}
}

// take notes that the server has taken a change.
func (d *delivered) take(c *change) {
	if d.sites == nil {
		d.sites, d.retired = make(map[siteKey]counts), make(map[placeKey]mem.Tally)
	}
	if c.tensor != nil {
		d.sites[siteKey{c.placeKey, c.tensor}] = c.site
		return
	}
	d.retired[c.placeKey] = c.sum
	for _, key := range c.in {
		site := d.sites[key]
		if site.moved = 0; site == (counts{}) {
			delete(d.sites, key)
		} else {
			d.sites[key] = site
		}
	}
}
