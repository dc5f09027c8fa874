package snapshot

import (
	"fmt"
	"slices"
	"strings"
)

// Column is a column of a Profile's table.
type Column uint8

// The columns. The zero Column is the order of the tree.
const (
	ByTree Column = iota
	ByPath
	ByCalls
	ByTime
	ByDeviceTime
	ByCPUTime
	ByRSS
	ByHeap
	ByAllocated
	ByKept
	ByEstimate
	ByDifference
	ByPeak
	ByOwnPeak
	ByLive
	ByFLOPs
	ByParams
	ByInputs
	BySite
)

var columnNames = [...]string{
	ByTree: "tree", ByPath: "path", ByCalls: "calls", ByTime: "time", ByDeviceTime: "gpu-time", ByCPUTime: "cpu-time",
	ByRSS: "rss", ByHeap: "heap", ByAllocated: "allocated", ByKept: "kept", ByEstimate: "estimate",
	ByDifference: "difference", ByPeak: "peak", ByOwnPeak: "own-peak", ByLive: "live",
	ByFLOPs: "flops", ByParams: "params", ByInputs: "inputs", BySite: "site",
}

// String returns the column's name: "own-peak".
func (c Column) String() string {
	if int(c) < len(columnNames) {
		return columnNames[c]
	}
	return fmt.Sprintf("Column(%d)", uint8(c))
}

// MarshalText writes the column's name.
func (c Column) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads a column as ParseColumn does.
func (c *Column) UnmarshalText(text []byte) (err error) {
	*c, err = ParseColumn(string(text))
	return err
}

// ParseColumn reads a name that String writes. The error lists the names.
func ParseColumn(name string) (Column, error) {
	if i := slices.Index(columnNames[:], name); i >= 0 {
		return Column(i), nil
	}
	return 0, fmt.Errorf("parse column %q: want one of %s", name, strings.Join(columnNames[:], ", "))
}
