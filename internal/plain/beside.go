package plain

import "github.com/gpumemtrack/gpumemtrack/internal/bounded"

// Batch is elements that were appended to a list within a list of the outermost dict: dict[Key][Index].
type Batch struct {
	*Data
	Key    string
	Index  int
	List   Value
	Values []Value // valid until the next batch
	Before []Value // the keys of the dict that came before, each followed by its value
}

// ReadPickleBeside is ReadPickle, and calls each with each Batch as it is read. each may read the Data; when it returns,
// no one else may until the file is read. final reports that nothing in a batch was changed after each had it, as it can be
// in a pickle, though no program that writes recordings does so.
func ReadPickleBeside(r *bounded.Reader, each func(Batch)) (d *Data, top Value, final bool, err error) {
	p := newPickle(r)
	p.watch = &watch{each: each}
	d, top, err = readPickle(p)
	return d, top, !p.watch.changed, err
}

// watch finds the batches of a pickle that is being read.
type watch struct {
	each         func(Batch)
	outer, inner Value // the lists of the latest batch
	dicts, lists int64 // how many there were then
	changed      bool  // one of these was changed later
}

// extends is called before values are added to a list or dict, the top of the stack.
func (w *watch) extends(p *pickle, into Value, values []Value) {
	if into.kind == Dict {
		w.changed = w.changed || into.n < w.dicts && into != p.stack[0]
		return
	}
	w.changed = w.changed || into.n < w.lists && into != w.outer && into != w.inner
	if b, outer, ok := batchOf(p, into, values); ok && len(values) > 0 {
		w.each(b)
		w.outer, w.inner, w.dicts, w.lists = outer, into, int64(p.dicts.len()), int64(p.lists.numbers.len())
	}
}

// batchOf returns the batch that values are, if the top of the stack is a list as Batch says, and the list that holds it or will.
func batchOf(p *pickle, into Value, values []Value) (b Batch, outer Value, ok bool) {
	n := len(p.stack)
	if len(p.marks) == 0 || p.marks[0] != 1 || p.stack[0].kind != Dict {
		return b, outer, false
	}
	at := 0 // of the key
	switch {
	case len(p.marks) == 1: // each list is appended as the only one
		at = n - 3
		if (n-1)%2 == 0 {
			at = n - 2
		}
	case len(p.marks) == 2:
		at = p.marks[1] - 2
	}
	if at < 1 || at%2 == 0 || p.stack[at].kind != String || p.stack[at+1].kind != List {
		return b, outer, false
	}
	outer = p.stack[at+1]
	if n < at+3 || into.kind != List {
		return b, outer, false
	}
	index := p.Len(outer) + n - at - 3
	return Batch{p.Data, p.Str(p.stack[at]), index, into, values, p.stack[1:at]}, outer, true
}
