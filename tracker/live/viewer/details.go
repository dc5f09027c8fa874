package viewer

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/bands"
	"github.com/gpumemtrack/gpumemtrack/tracker/live/internal/request"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// maxList is how many allocations or rows an answer lists.
const maxList = 1000

// limitOf reads how many are listed.
func limitOf(q *request.Query) int {
	const usual = 100
	n := q.Number("limit", maxList)
	if !q.Has("limit") {
		return usual
	}
	if n < 1 {
		q.Fail("limit=%d: want at least 1", n)
	}
	return n
}

// briefJSON is an allocation in a list.
type briefJSON struct {
	Allocation uint32   `json:"allocation"`
	Offset     *int64   `json:"offset,omitempty"`
	Bytes      int64    `json:"bytes"`
	Line       uint32   `json:"line"`
	Kind       uint16   `json:"kind"`
	Name       string   `json:"name"`
	Born       uint32   `json:"born"`
	Died       *uint32  `json:"died"`
	Address    string   `json:"address"`
	Life       *float64 `json:"life,omitempty"`
}

func (t *track) brief(id uint32) briefJSON {
	born, died := t.Life(id)
	return briefJSON{
		Allocation: id, Bytes: t.Bytes(id), Line: t.Line(id), Kind: t.Kind(id), Name: t.lineName(t.Line(id)), Born: born, Died: ended(died),
		Address: t.Ptr(id).String(),
	}
}

// ended returns when an allocation ended, or nil if it is live at the end.
func ended(died uint32) *uint32 {
	if died == bands.Forever {
		return nil
	}
	return &died
}

// bandsAt answers the bands at a moment.
func bandsAt(s *session, r *http.Request, q *request.Query) (answer, error) {
	a, err := s.asked(q)
	if err != nil {
		return answer{}, err
	}
	const high = 1 << 60
	moment, y0 := a.momentOf(q, "moment"), q.Float("y0", 0, high, 0)
	y1 := q.Float("y1", 0, high, high)
	limit := limitOf(q)
	if y1 < y0 {
		q.Fail("y0=%g, y1=%g: want y1 not below y0", y0, y1)
	}
	return s.respond(r, q, a, func(l *bands.Layer) (any, error) {
		found, more := l.Bands(moment, int64(y0), int64(y1), limit)
		out := struct {
			Items []briefJSON `json:"items"`
			More  int         `json:"more"`
		}{[]briefJSON{}, more}
		for _, b := range found {
			item := a.brief(b.ID)
			item.Offset = &b.Offset
			out.Items = append(out.Items, item)
		}
		return out, nil
	})
}

// allocationJSON is all that is known of an allocation.
type allocationJSON struct {
	Allocation  uint32       `json:"allocation"`
	Bytes       int64        `json:"bytes"`
	Allocated   int64        `json:"allocated_bytes"`
	Address     string       `json:"address"`
	Kind        uint16       `json:"kind"`
	KindName    string       `json:"kind_name"`
	Line        uint32       `json:"line"`
	Name        string       `json:"name"`
	Shape       *string      `json:"shape"`
	DType       *string      `json:"dtype"`
	Label       *string      `json:"label"`
	Section     *string      `json:"section"`
	Stream      alloc.Stream `json:"stream"`
	Memory      *string      `json:"memory"`
	Born        uint32       `json:"born"`
	Died        *uint32      `json:"died"`
	BornSeconds *float64     `json:"born_seconds"`
	DiedSeconds *float64     `json:"died_seconds"`
	LifeSeconds *float64     `json:"life_seconds"`
	BornBefore  bool         `json:"born_before"`
	StackID     uint32       `json:"stack_id"`
	Stack       []frameJSON  `json:"stack"`
	StackMore   int          `json:"stack_more,omitempty"`
	FreedAt     []frameJSON  `json:"freed_at"`
	OffsetBorn  int64        `json:"offset_born"`
	Before      *briefJSON   `json:"before"`
	After       *briefJSON   `json:"after"`
	BeforeMore  int          `json:"before_more"`
	AfterMore   int          `json:"after_more"`
}

type frameJSON struct {
	Function string `json:"function"`
	File     string `json:"file"`
	Line     int    `json:"line"`
	CallSite bool   `json:"call_site"` // it is the line of code that the allocation counts for
}

// maxFrames is how many frames of a stack an answer has, the innermost.
const maxFrames = 256

func frames(s mem.Stack, line mem.Frame) (out []frameJSON, more int) {
	out = []frameJSON{}
	for _, f := range s[:min(len(s), maxFrames)] {
		is := f == line
		if is {
			line = mem.Frame{Line: -1} // the innermost of equal frames
		}
		out = append(out, frameJSON{printable(f.Function), printable(f.File), f.Line, is})
	}
	return out, max(0, len(s)-maxFrames)
}

func allocation(s *session, r *http.Request, q *request.Query) (answer, error) {
	t, err := s.trackOf(q)
	if err != nil {
		return answer{}, err
	}
	id := uint32(q.Number("id", 1<<31-1))
	return s.respond(r, q, asked{track: t}, func(*bands.Layer) (any, error) {
		if int(id) >= t.Len() {
			return nil, notFound("track %s has no allocation %d: it has %d", t.about.ID, id, t.Len())
		}
		return t.detail(id), nil
	})
}

func (t *track) detail(id uint32) allocationJSON {
	d := bands.Describe(t.Index, id)
	out := allocationJSON{
		Allocation: id, Bytes: int64(d.Requested), Allocated: int64(d.Allocated), Address: d.Ptr.String(), Kind: t.Kind(id), KindName: t.Names.Kind(t.Kind(id)),
		Line: d.Line, Name: t.lineName(d.Line), Label: known(d.Label), Section: known(d.Section), Stream: d.Stream,
		Born: d.Born, Died: ended(d.Died), BornBefore: d.Born == 0, StackID: d.StackID, OffsetBorn: d.Below, BeforeMore: d.BeforeMore, AfterMore: d.AfterMore,
	}
	if x := d.Tensor; x != nil {
		if x.DType.Bits() > 0 {
			shape, dtype := x.Shape.String(), x.DType.String()
			out.Shape, out.DType = known(shape), known(dtype)
		}
		if x.Memory != alloc.UnknownMemory {
			out.Memory = known(x.Memory.String())
		}
	}
	line := t.Names.Frame(d.Line)
	out.Stack, out.StackMore = frames(d.Stack, line)
	if d.FreedAt != nil {
		out.FreedAt, _ = frames(d.FreedAt, d.FreedAt.CallSite())
	}
	if d.Born > 0 {
		out.BornSeconds = t.secondsAt(d.Born)
	}
	if d.Died != bands.Forever {
		out.DiedSeconds = t.secondsAt(d.Died)
	}
	if life := t.Lifetime(id); !t.Untimed() {
		out.LifeSeconds = &life
	}
	for _, n := range []struct {
		id *uint32
		to **briefJSON
	}{{d.Before, &out.Before}, {d.After, &out.After}} {
		if n.id != nil {
			brief := t.brief(*n.id)
			*n.to = &brief
		}
	}
	return out
}

// allocations lists those that are live at a moment, or that touch a range.
func allocations(s *session, r *http.Request, q *request.Query) (answer, error) {
	a, err := s.asked(q)
	if err != nil {
		return answer{}, err
	}
	axis, x0, x1 := a.axisOf(q)
	moment, atMoment := a.momentOf(q, "moment"), q.Has("moment")
	sort, limit, offset := q.Word("sort", "bytes", "born", "life"), limitOf(q), q.Number("offset", 1<<20)
	if atMoment && (q.Has("x0") || q.Has("x1")) {
		q.Fail("want moment, or x0 and x1")
	}
	return s.respond(r, q, a, func(l *bands.Layer) (any, error) {
		within := bands.Column{From: moment, To: moment}
		if !atMoment {
			within = a.Span(axis, x0, x1)
		}
		rank := map[string]func(id uint32) float64{
			"bytes": func(id uint32) float64 { return float64(a.Bytes(id)) },
			"born":  func(id uint32) float64 { return -float64(id) },
			"life":  a.Lifetime,
		}[sort]
		ids, n, bytes, err := bands.List(r.Context(), l, within, rank, offset, limit)
		if err != nil {
			return nil, err
		}
		out := struct {
			Items []briefJSON `json:"items"`
			Total int         `json:"total"`
			Bytes int64       `json:"bytes"`
		}{[]briefJSON{}, n, bytes}
		for _, id := range ids {
			item := a.brief(id)
			life := a.Lifetime(id)
			item.Life = &life
			out.Items = append(out.Items, item)
		}
		return out, nil
	})
}

func stackOf(s *session, r *http.Request, q *request.Query) (answer, error) {
	t, err := s.trackOf(q)
	if err != nil {
		return answer{}, err
	}
	n := q.Number("stack", 1<<31-1)
	return s.respond(r, q, asked{track: t}, func(*bands.Layer) (any, error) {
		if n >= t.Stacks() {
			return nil, notFound("track %s has no stack %d: it has %d", t.about.ID, n, t.Stacks())
		}
		stack, line := t.Stack(uint32(n))
		out := struct {
			Stack []frameJSON `json:"stack"`
			More  int         `json:"stack_more,omitempty"`
		}{}
		out.Stack, out.More = frames(stack, t.Names.Frame(line))
		return out, nil
	})
}

// maxNames is how many names an answer has.
const maxNames = 512

// lineNames answers the names of lines and kinds by their numbers. A number that names nothing is left out.
func lineNames(s *session, _ *http.Request, q *request.Query) (answer, error) {
	lines, kinds := listed(q, "lines", 1<<32-1), listed(q, "kinds", 1<<16-1)
	if err := checked(q); err != nil {
		return answer{}, err
	}
	out := struct {
		Lines map[string]string `json:"lines"`
		Kinds map[string]string `json:"kinds"`
	}{make(map[string]string), make(map[string]string)}
	nLines, nKinds := s.names.Len()
	for _, n := range lines {
		if n < uint64(nLines) {
			out.Lines[strconv.FormatUint(n, 10)] = printable(s.names.Line(uint32(n)))
		}
	}
	for _, n := range kinds {
		if n < uint64(nKinds) {
			out.Kinds[strconv.FormatUint(n, 10)] = s.names.Kind(uint16(n))
		}
	}
	return asJSON(out)
}

// listed reads numbers with commas between them.
func listed(q *request.Query, name string, most uint64) (out []uint64) {
	text := q.Text(name)
	if text == "" {
		return nil
	}
	words := strings.Split(text, ",")
	if len(words) > maxNames {
		q.Fail("%s has %d numbers: want at most %d", name, len(words), maxNames)
		return nil
	}
	for _, word := range words {
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil || n > most {
			q.Fail("%s: %q is not a number from 0 to %d", name, word, most)
			return nil
		}
		out = append(out, n)
	}
	return out
}
