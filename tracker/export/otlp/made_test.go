package otlp

import (
	"fmt"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// made is a source whose call sites are made up.
type made struct {
	tables tables.Tables
	took   int
}

// manySites returns a source of call sites that have different stacks, with many common frames as in programs.
func manySites(sites, depth int) *made {
	tensor, err := tables.NewTensor(alloc.Shape{1024}, alloc.Float32, "Parameter")
	if err != nil {
		panic(err)
	}
	tensor.Memory = alloc.DeviceMemory
	stacks := new(tables.StackTable)
	m := &made{tables: tables.Tables{Stacks: stacks, Sections: []string{""}, Epoch: time.Unix(1_000_000, 0)}}
	for i := range sites {
		stack := make(mem.Stack, depth)
		for at := range stack {
			line := i >> (2 * at)
			stack[at] = mem.Frame{Function: fmt.Sprintf("example.com/train/model.(*Layer%d).Forward%d", at, line%512), File: fmt.Sprintf("/src/train/model/layer%d.go", at), Line: 1 + line}
		}
		m.tables.Sites = append(m.tables.Sites, tables.SiteEntry{
			Place: tables.Place{Stack: stacks.Add(stack, stack[0])}, Tensor: &tensor, Live: int64(1 + i%3), Peak: int64(1 + i%3), Total: int64(4 + i%7),
		})
	}
	return m
}

// change allocates a buffer more at one of every so many call sites.
func (m *made) change(every int) {
	m.took++
	for i := m.took % every; i < len(m.tables.Sites); i += every {
		m.tables.Sites[i].Live++
		m.tables.Sites[i].Total++
	}
}

func (m *made) LightSnapshot() *snapshot.Snapshot {
	s := &snapshot.Snapshot{Device: "GPU", UUID: "GPU-00000000-0000-0000-0000-000000000000", Time: time.Unix(1_000_000+int64(m.took), 0), Tables: tables.Wrap(m.tables)}
	t := tables.Of(&s.Tables)
	t.Sites = append([]tables.SiteEntry(nil), m.tables.Sites...)
	s.DriverUsed, s.DriverTotal = -1, -1
	return s
}
