package torch

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
)

// Read reads a memory snapshot of PyTorch, of Write or of PyTorch's own
// torch.cuda.memory._dump_snapshot, and returns its live blocks by call stack. Peaks and
// totals are not in such a file. Nothing in the file is run: a pickle that would
// call code is refused. The error says where the file is torn or no such snapshot.
func Read(r io.Reader) (*export.Usage, error) {
	value, err := unpickle(r)
	if err != nil {
		return nil, fmt.Errorf("read PyTorch snapshot: %w", err)
	}
	top, ok := value.(*dict)
	if !ok {
		return nil, fmt.Errorf("read PyTorch snapshot: the pickle is a %T, want a dict with segments", value)
	}
	in := reader{
		usage:  new(export.Usage),
		seen:   make(map[any]bool),
		stacks: make(map[*sequence]tracker.Stack),
		rows:   make(map[rowKey]int),
	}
	in.settings(top)
	if err := in.read(top); err != nil {
		return nil, fmt.Errorf("read PyTorch snapshot: %w", err)
	}
	return in.usage, nil
}

// reader turns the dicts into rows. Each dict is looked at once, so that a small
// file in which one is named often takes no more time than a large one.
type reader struct {
	usage  *export.Usage
	own    bool   // Write wrote it
	device string // as Write named it
	last   int64  // microseconds: the time of the latest event
	seen   map[any]bool
	stacks map[*sequence]tracker.Stack
	rows   map[rowKey]int
}

type rowKey struct {
	stack                               export.StackID
	device, kind, dtype, shape, section string
}

func (in *reader) settings(top *dict) {
	value, _ := top.get("allocator_settings")
	settings, ok := value.(*dict)
	if !ok {
		return
	}
	in.own = str(settings, "made_by") == "gpumemtrack"
	if in.own {
		in.device = str(settings, "device")
		in.usage.Origin = export.OriginOf(func(name string) string { return str(settings, name) })
	}
}

func (in *reader) read(top *dict) error {
	categories, err := in.traces(top)
	if err != nil {
		return err
	}
	segments, err := in.dicts(top, "segments")
	if err != nil {
		return err
	}
	for i, s := range segments {
		device, err := integer(s, "device")
		if err != nil {
			return fmt.Errorf("segment %d: %w", i, err)
		}
		at, err := integer(s, "address")
		if err != nil {
			return fmt.Errorf("segment %d: %w", i, err)
		}
		blocks, err := in.dicts(s, "blocks")
		if err != nil {
			return fmt.Errorf("segment %d: %w", i, err)
		}
		for j, b := range blocks {
			size, err := integer(b, "size")
			if err == nil && size < 0 {
				err = fmt.Errorf("size is %d", size)
			}
			if err != nil {
				return fmt.Errorf("segment %d, block %d: %w", i, j, err)
			}
			if str(b, "state") == "active_allocated" {
				in.block(b, place{device, at}, size, categories)
			}
			at += size // older files do not have the block's own address
		}
	}
	return nil
}

// place is an address of a device.
type place struct{ device, addr int64 }

// traces returns the category of the last allocation at each address, and finds
// the time of the last event.
func (in *reader) traces(top *dict) (map[place]string, error) {
	categories := make(map[place]string)
	value, ok := top.get("device_traces")
	if !ok {
		return categories, nil
	}
	devices, ok := value.(*sequence)
	if !ok {
		return nil, fmt.Errorf("device_traces is a %T, want a list", value)
	}
	for device, value := range devices.items {
		events, ok := value.(*sequence)
		if !ok {
			return nil, fmt.Errorf("device_traces[%d] is a %T, want a list", device, value)
		}
		if in.again(events) {
			return nil, fmt.Errorf("device_traces[%d] stands twice", device)
		}
		for _, value := range events.items {
			e, ok := value.(*dict)
			if !ok {
				return nil, fmt.Errorf("an event of device_traces[%d] is a %T, want a dict", device, value)
			}
			if us, err := integer(e, "time_us"); err == nil && us > in.last {
				in.last, in.usage.Time = us, time.UnixMicro(us).UTC()
			}
			if category := str(e, "category"); category != "" && str(e, "action") == "alloc" {
				if addr, err := integer(e, "addr"); err == nil {
					categories[place{int64(device), addr}] = category
				}
			}
		}
	}
	return categories, nil
}

// again reports whether the object was asked about before.
func (in *reader) again(object any) bool {
	was := in.seen[object]
	in.seen[object] = true
	return was
}

// dicts returns a list of dicts, none of which stands in another such list.
func (in *reader) dicts(d *dict, key string) ([]*dict, error) {
	value, _ := d.get(key)
	l, ok := value.(*sequence)
	if !ok {
		return nil, fmt.Errorf("%s is a %T, want a list: not a memory snapshot", key, value)
	}
	out := make([]*dict, 0, len(l.items))
	for i, value := range l.items {
		e, ok := value.(*dict)
		if !ok {
			return nil, fmt.Errorf("%s[%d] is a %T, want a dict", key, i, value)
		}
		if in.again(e) {
			return nil, fmt.Errorf("%s[%d] stands twice", key, i)
		}
		out = append(out, e)
	}
	return out, nil
}

func (in *reader) block(b *dict, at place, size int64, categories map[place]string) {
	row := export.Row{Device: in.device, Kind: kindNamed(categories[at])}
	if row.Device == "" {
		row.Device = fmt.Sprintf("cuda:%d", at.device)
	}
	if value, _ := b.get("gpumemtrack"); value != nil {
		if own, ok := value.(*dict); ok {
			row.Kind, row.DType, row.Shape, row.Section = str(own, "kind"), str(own, "dtype"), str(own, "shape"), str(own, "section")
		}
	}
	frames, requested := allocation(b, size)
	row.Stack = in.stack(frames)
	key := rowKey{export.IdentifyStack(row.Stack), row.Device, row.Kind, row.DType, row.Shape, row.Section}
	i, ok := in.rows[key]
	if !ok {
		i = len(in.usage.Rows)
		in.rows[key] = i
		row.Site = in.site(row.Stack)
		in.usage.Rows = append(in.usage.Rows, row)
	}
	live := &in.usage.Rows[i].Live
	*live = live.Add(tracker.Tally{Count: 1, Bytes: alloc.Bytes(requested)})
}

// allocation returns a block's frames and what was requested of it. Before 2023,
// PyTorch kept both in a list, "history".
func allocation(b *dict, size int64) (frames *sequence, requested int64) {
	requested, err := integer(b, "requested_size")
	if value, _ := b.get("history"); value != nil {
		if history, ok := value.(*sequence); ok && len(history.items) > 0 {
			if last, ok := history.items[0].(*dict); ok {
				frames = sequenceAt(last, "frames")
				if err != nil {
					requested, err = integer(last, "real_size")
				}
			}
		}
	}
	if own := sequenceAt(b, "frames"); own != nil {
		frames = own
	}
	if err != nil || requested < 0 || requested > size {
		requested = size
	}
	return frames, requested
}

// stack reads frames, once for all blocks that share them.
func (in *reader) stack(frames *sequence) tracker.Stack {
	if frames == nil {
		return nil
	}
	stack, ok := in.stacks[frames]
	if ok {
		return stack
	}
	for _, value := range frames.items {
		if f, ok := value.(*dict); ok {
			line, _ := integer(f, "line")
			stack = append(stack, tracker.Frame{Function: str(f, "name"), File: str(f, "filename"), Line: int(line)})
		}
	}
	in.stacks[frames] = stack
	return stack
}

// site returns the line of the user's code. In Python it is the innermost line
// that is not of PyTorch or another installed package, which may be none.
func (in *reader) site(s tracker.Stack) tracker.Frame {
	if in.own {
		return s.Site()
	}
	var found tracker.Frame
	for _, f := range s {
		switch python := strings.HasSuffix(f.File, ".py"); {
		case python && !strings.Contains(f.File, "-packages/") && !strings.Contains(f.File, "/torch/"):
			return f
		case found.IsZero(), python && !strings.HasSuffix(found.File, ".py"):
			found = f
		}
	}
	return found
}

// kindNamed turns a category of PyTorch's profiler into our word, where there is one.
func kindNamed(category string) string {
	for kind, name := range categories {
		if name == category {
			return kind.String()
		}
	}
	return category
}

// str returns the string at the key, "" if there is none.
func str(d *dict, key string) string {
	value, _ := d.get(key)
	s, _ := value.(string)
	return s
}

func sequenceAt(d *dict, key string) *sequence {
	value, _ := d.get(key)
	l, _ := value.(*sequence)
	return l
}

func integer(d *dict, key string) (int64, error) {
	value, ok := d.get(key)
	if !ok {
		return 0, fmt.Errorf("there is no %s", key)
	}
	v, ok := value.(int64)
	if !ok {
		return 0, fmt.Errorf("%s is a %T, want an integer", key, value)
	}
	return v, nil
}
