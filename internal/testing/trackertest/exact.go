package trackertest

import (
	"github.com/stretchr/testify/require"
	"maps"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// RequireExact checks that a snapshot's totals are the sum over its
// allocations, over its groups and over its call sites. Totals are of the device's memory.
func RequireExact(t require.TestingT, s *snapshot.Snapshot) {
	var allocations, groups, sites, peak, total mem.Tally
	var allocated, registered alloc.Bytes
	byMemory := make(map[alloc.Memory]mem.Tally)
	for a := range s.Allocations() {
		byMemory[a.Memory] = byMemory[a.Memory].Add(mem.Tally{Count: 1, Bytes: a.Requested})
		if a.Memory.OnHost() {
			continue
		}
		allocations = allocations.Add(mem.Tally{Count: 1, Bytes: a.Requested})
		allocated += a.Allocated
		if a.Registered {
			registered += a.Allocated
		}
	}
	for _, g := range s.Sub(nil) {
		if !g.Memory.OnHost() {
			groups = groups.Add(g.Tally)
		}
	}
	for site := range s.CallSites() {
		if site.Memory.OnHost() {
			continue
		}
		sites, peak, total = sites.Add(site.Live), peak.Add(site.Peak), total.Add(site.Total)
	}
	require.Equal(t, s.Live, allocations, "live against the allocations")
	require.Equal(t, s.Live, groups, "live against the groups")
	require.Equal(t, s.Live, sites, "live against the call sites")
	require.Equal(t, s.Peak, peak, "peak against the call sites")
	require.Equal(t, s.Total, total, "total against the call sites")
	require.Equal(t, s.Allocated, allocated, "allocated against the allocations")
	require.Equal(t, s.Registered, registered, "registered against the allocations")
	require.True(t, maps.Equal(s.Memory, byMemory), "types of memory %v against the allocations %v", s.Memory, byMemory)
}
