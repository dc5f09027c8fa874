// Package leaks finds memory in a snapshot that was not freed: what is live, by call stack ([Live]); buffers that look
// forgotten ([Suspects]); and lines that hold ever more old buffers ([Growing]).
//
//	for _, suspect := range leaks.Suspects(s) { // s is a *snapshot.Snapshot, of a tracker or from a file
//		fmt.Println(suspect)
//	}
//
// It looks only at the snapshot, never at the program. A suspect is a guess, and its text says what
// the guess is based on.
package leaks

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Leak is the memory that one call stack allocated, with one kind, shape and dtype in one section,
// and did not free.
type Leak struct {
	snapshot.Group
	snapshot.Place
	mem.Tally         // what is live
	Unreachable int64 `json:"unreachable_count"` // how many of them the program can no longer free; see tracker.Config.FindUnreachable
}

// String returns the leak and its call stack, as goleak prints a goroutine.
func (l Leak) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: %d * %v %v %v", l.Tally, l.Count, l.Kind, l.Shape, l.DType)
	if l.Section != "" {
		fmt.Fprintf(&b, " in section %q", l.Section)
	}
	if l.Unreachable > 0 {
		fmt.Fprintf(&b, ", %d of them definitely leaked: nothing refers to them any more", l.Unreachable)
	}
	b.WriteString(", allocated by\n")
	b.WriteString(l.Stack.String())
	return b.String()
}

// Option selects the buffers that Live, Suspects and tracker.VerifyNoLeaks report.
type Option func(*filter)

type filter struct {
	from        uint64 // sequence number
	unreachable bool   // only unreachable buffers
	ignore      []func(*tables.Tables, *tables.SiteEntry) bool
}

func newFilter(opts []Option) (f filter) {
	for _, opt := range opts {
		opt(&f)
	}
	return f
}

// all reports whether the filter leaves out nothing.
func (f *filter) all() bool { return f.from == 0 && !f.unreachable && len(f.ignore) == 0 }

// Since leaves out what was allocated before base, a snapshot of the same tracker, which may
// be a light one. A nil base leaves out nothing.
func Since(base *snapshot.Snapshot) Option {
	return func(f *filter) {
		if base != nil {
			f.from = max(f.from, base.Events)
		}
	}
}

// OnlyUnreachable keeps only unreachable buffers, which the program can no longer free: see
// tracker.Config.FindUnreachable.
func OnlyUnreachable() Option { return func(f *filter) { f.unreachable = true } }

// IgnoreKinds leaves out buffers of these kinds.
func IgnoreKinds(kinds ...mem.Kind) Option {
	return ignore(func(_ *tables.Tables, e *tables.SiteEntry) bool { return slices.Contains(kinds, e.Tensor.Kind) })
}

// IgnoreFunction leaves out what was allocated by, or anywhere below, a
// function: "example.com/model.Load", "example.com/model.(*Net).Forward".
func IgnoreFunction(name string) Option {
	return ignore(func(t *tables.Tables, e *tables.SiteEntry) bool {
		return slices.ContainsFunc(t.Stacks.Stack(e.Stack), func(f mem.Frame) bool { return f.Function == name })
	})
}

// IgnoreSection leaves out what was allocated in the section with that path, or in a part of
// it.
func IgnoreSection(path string) Option {
	return ignore(func(t *tables.Tables, e *tables.SiteEntry) bool {
		rest, ok := strings.CutPrefix(t.Sections[e.Section], path)
		return ok && (rest == "" || rest[0] == '/')
	})
}

func ignore(match func(*tables.Tables, *tables.SiteEntry) bool) Option {
	return func(f *filter) { f.ignore = append(f.ignore, match) }
}

// selects reports whether no option leaves out the buffer.
func (f *filter) selects(t *tables.Tables, a *tables.AllocationEntry) bool {
	if a.Seq < f.from || f.unreachable && !a.Unreachable {
		return false
	}
	for _, ignored := range f.ignore {
		if ignored(t, &t.Sites[a.Site]) {
			return false
		}
	}
	return true
}

// Live returns the live buffers by call stack, kind, shape, dtype and section: unreachable buffers
// first, then by size. A light snapshot has none.
func Live(s *snapshot.Snapshot, opts ...Option) []Leak {
	filter := newFilter(opts)
	index := make(map[int32]int) // by site
	var leaks []Leak
	t := tables.Of(&s.Tables)
	for _, a := range t.Allocations {
		if !filter.selects(t, &a) {
			continue
		}
		e := &t.Sites[a.Site]
		i, ok := index[a.Site]
		if !ok {
			i = len(leaks)
			index[a.Site] = i
			leaks = append(leaks, Leak{
				Group: snapshot.Group{Kind: e.Tensor.Kind, DType: e.Tensor.DType, Shape: e.Tensor.Shape, Memory: e.Tensor.Memory},
				Place: snapshot.Place{
					Section: t.Sections[e.Section], Stream: tables.StreamOf(t.Streams, e.Stream),
					Stack: t.Stacks.Stack(e.Stack), CallSite: t.Stacks.Site(e.Stack),
				},
			})
		}
		leaks[i].Tally = leaks[i].Tally.Add(mem.Tally{Count: 1, Bytes: e.Tensor.Each})
		if a.Unreachable {
			leaks[i].Unreachable++
		}
	}
	slices.SortStableFunc(leaks, func(x, y Leak) int {
		return cmp.Or(cmp.Compare(min(y.Unreachable, 1), min(x.Unreachable, 1)), cmp.Compare(y.Bytes, x.Bytes))
	})
	return leaks
}
