// Command bigrecording writes a memory snapshot of any size in the form of torch.cuda.memory._dump_snapshot: a pickle of
// protocol 4, whose events each have a list of their own of shared frames. Nothing in it was measured. scripts/bench-recordings
// reads such files.
package main

import (
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
)

func main() {
	var c config
	flag.IntVar(&c.events, "events", 1_000_000, "events")
	flag.IntVar(&c.stacks, "stacks", 5000, "call stacks")
	flag.IntVar(&c.depth, "depth", 56, "frames of a stack, about")
	flag.IntVar(&c.live, "live", 20_000, "live buffers")
	flag.Uint64Var(&c.seed, "seed", 1, "of the random numbers")
	flag.Parse()
	if flag.NArg() != 1 || c.events < 0 || c.stacks < 1 || c.depth < 2 || c.live < 1 {
		log.Fatal("usage: bigrecording [FLAGS] FILE: every number must be positive, and --depth at least 2")
	}
	if err := write(flag.Arg(0), c); err != nil {
		log.Fatal(err)
	}
}

type config struct {
	events, stacks, depth, live int
	seed                        uint64
}

func write(path string, c config) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	w := &writer{pickler: newPickler(f), stacks: stacksOf(c)}
	w.snapshot(c)
	if err := w.flush(); err != nil {
		return err
	}
	return f.Close()
}

// frame is a line of code.
type frame struct {
	function, file string
	line           int
}

// stacksOf makes call stacks. The outer half of each is of the few hundred frames of a training loop, which all stacks share;
// the inner half is of its own.
func stacksOf(c config) [][]frame {
	const shared = 400
	r := rand.New(rand.NewPCG(c.seed, 1))
	frameOf := func(i int) frame {
		switch i % 4 {
		case 0:
			return frame{fmt.Sprintf("c10::cuda::launch_kernel_%d<at::TensorIterator, float>(c10::Storage const&, long)", i), "??", 0}
		case 1:
			return frame{fmt.Sprintf("step_%d", i), fmt.Sprintf("/srv/train/loop_%d.py", i%31), 1 + i%900}
		}
		return frame{fmt.Sprintf("forward_%d", i), fmt.Sprintf("/opt/python/lib/torch/nn/layers_%d.py", i%67), 1 + i%2500}
	}
	frames := make([]frame, shared+2*c.stacks)
	for i := range frames {
		frames[i] = frameOf(i)
	}
	all := make([][]frame, c.stacks)
	for i := range all {
		depth := max(2, c.depth+r.IntN(c.depth/3+1)-c.depth/6)
		for j := range depth {
			if j < depth/2 {
				all[i] = append(all[i], frames[shared+r.IntN(2*c.stacks)])
			} else {
				all[i] = append(all[i], frames[r.IntN(shared)])
			}
		}
	}
	return all
}

// The pool is of slots of equal size, some in each segment.
const (
	base      = 0x7f2000000000
	slotBytes = 2 << 20
	perSlab   = 8 // slots of a segment
	step      = 37
	began     = 1_760_000_000_000_000 // microseconds
)

type buffer struct{ slot, size, stack int }

// history calls event for each event, in order, and returns what is live at the end, by slot.
func history(c config, event func(action string, b buffer, micros int64)) map[int]buffer {
	r := rand.New(rand.NewPCG(c.seed, 2))
	free := make([]int, 2*c.live)
	for i := range free {
		free[i] = i
	}
	live := make([]buffer, 0, 2*c.live)
	for n := 0; n < c.events; n++ {
		now := began + step*int64(n)
		if len(live) < c.live || len(free) > 0 && r.IntN(3) == 0 {
			b := buffer{slot: free[len(free)-1], stack: r.IntN(c.stacks)}
			free = free[:len(free)-1]
			b.size = 512 * (1 + int((int64(b.stack)*2654435761+r.Int64N(3))%4095))
			live = append(live, b)
			event("alloc", b, now)
			continue
		}
		i := r.IntN(len(live))
		b := live[i]
		live[i] = live[len(live)-1]
		live = live[:len(live)-1]
		free = append(free, b.slot)
		event("free_requested", b, now)
		if n++; n < c.events {
			event("free_completed", b, now+step)
		}
	}
	end := make(map[int]buffer, len(live))
	for _, b := range live {
		end[b.slot] = b
	}
	return end
}

// writer writes the parts of a snapshot, in PyTorch's order.
type writer struct {
	*pickler
	stacks [][]frame
}

func (w *writer) snapshot(c config) {
	end := history(c, func(string, buffer, int64) {})
	w.beginDict()
	w.text("segments")
	w.beginList()
	for first := 0; first < 2*c.live; first += perSlab {
		w.segment(first, end)
	}
	w.endList()
	w.text("device_traces")
	w.beginList()
	w.beginList()
	history(c, w.event)
	w.endList()
	w.endList()
	w.text("allocator_settings")
	w.beginDict()
	w.item("expandable_segments", false)
	w.endDict()
	w.text("external_annotations")
	w.emptyList()
	w.endDict()
}

func (w *writer) event(action string, b buffer, micros int64) {
	w.element()
	w.beginDict()
	w.item("action", action)
	w.item("addr", base+int64(b.slot)*slotBytes)
	w.item("size", b.size)
	w.item("stream", 0)
	w.item("time_us", micros)
	w.item("compile_context", "N/A")
	w.item("user_metadata", "")
	w.text("frames")
	w.frames(b.stack)
	w.endDict()
}

func (w *writer) frames(stack int) {
	if stack < 0 {
		w.emptyList()
		return
	}
	w.beginList()
	for _, f := range w.stacks[stack] {
		w.frame(f)
	}
	w.endList()
}

// segment writes a segment with the buffers in its slots, and what is free between them.
func (w *writer) segment(first int, live map[int]buffer) {
	used := 0
	for slot := first; slot < first+perSlab; slot++ {
		used += live[slot].size
	}
	w.element()
	w.beginDict()
	w.item("device", 0)
	w.item("address", base+int64(first)*slotBytes)
	w.item("total_size", perSlab*slotBytes)
	w.item("allocated_size", used)
	w.item("active_size", used)
	w.item("requested_size", used)
	w.item("stream", 0)
	w.item("segment_type", "large")
	w.item("is_expandable", false)
	w.text("frames")
	w.frames(-1)
	w.text("blocks")
	w.beginList()
	for slot := first; slot < first+perSlab; slot++ {
		b, ok := live[slot]
		if ok {
			w.block(int64(slot)*slotBytes, b.size, "active_allocated", b.stack)
		}
		if b.size < slotBytes {
			w.block(int64(slot)*slotBytes+int64(b.size), slotBytes-b.size, "inactive", -1)
		}
	}
	w.endList()
	w.endDict()
}

func (w *writer) block(at int64, size int, state string, stack int) {
	w.element()
	w.beginDict()
	w.item("address", base+at)
	w.item("size", size)
	w.item("requested_size", size)
	w.item("state", state)
	w.text("frames")
	w.frames(stack)
	w.endDict()
}
