package viewer

import (
	"encoding/binary"
	"math"
	"net/http"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/bands"
	"github.com/gpumemtrack/gpumemtrack/tracker/live/internal/request"
)

const (
	maxColumns = 2048
	maxRows    = 2048
	maxArea    = 1 << 18 // columns times rows of a tile: it bounds its items
	maxCurve   = 4096    // columns of a curve
)

// tileMagic begins a tile: "GMT1".
const tileMagic = 0x31544d47

// tileOf answers what a view shows, in a form that a script reads without parsing: see encodeTile.
func tileOf(s *session, r *http.Request, q *request.Query) (answer, error) {
	a, err := s.asked(q)
	if err != nil {
		return answer{}, err
	}
	axis, x0, x1 := a.axisOf(q)
	columns, rows := q.Number("columns", maxColumns), q.Number("rows", maxRows)
	const high = 1 << 60
	y0 := q.Float("y0", 0, high, 0)
	y1 := q.Float("y1", 0, high, 0)
	switch {
	case columns < 1 || rows < 1 || columns*rows > maxArea:
		q.Fail("columns=%d, rows=%d: want at least one of each, and a product of at most %d", columns, rows, maxArea)
	case y1 <= y0:
		q.Fail("y0=%g, y1=%g: want y1 above y0", y0, y1)
	}
	return s.respond(r, q, a, func(l *bands.Layer) (any, error) {
		view := bands.View{Columns: a.Columns(axis, x0, x1, columns), Y0: int64(y0), Y1: int64(math.Ceil(y1)), Rows: rows}
		t, err := l.Tile(r.Context(), view)
		if err != nil {
			return nil, err
		}
		return encodeTile(a.track, t, rows, [4]float64{x0, x1, y0, y1}), nil
	})
}

// encodeTile writes a tile in little-endian order: magic, columns, rows and items as 32-bit numbers, and the view as 64-bit
// floats; then arrays of 64-bit floats: level and passed bytes of each column, offset and bytes of each item; then arrays of 32-bit
// numbers: moment and passed of each column, from, to, count, id, line and kind of each item. Each array begins at a multiple
// of 8 bytes.
func encodeTile(t *track, tile *bands.Tile, rows int, view [4]float64) []byte {
	n, items := len(tile.Moments), len(tile.Items)
	w := tileWriter{make([]byte, 0, 48+8*(2*n+2*items)+4*(2*n+6*items)+8*8)}
	w.u32(tileMagic)
	w.u32(uint32(n))
	w.u32(uint32(rows))
	w.u32(uint32(items))
	for _, f := range view {
		w.f64(f)
	}
	for _, level := range tile.Levels {
		w.f64(float64(level))
	}
	for _, bytes := range tile.PassedBytes {
		w.f64(float64(bytes))
	}
	w.floats(tile.Items, func(i *bands.Item) int64 { return i.Offset })
	w.floats(tile.Items, func(i *bands.Item) int64 { return i.Bytes })
	w.numbers(tile.Moments)
	w.numbers(tile.Passed)
	for _, of := range []func(*bands.Item) uint32{
		func(i *bands.Item) uint32 { return uint32(i.From) },
		func(i *bands.Item) uint32 { return uint32(i.To) },
		func(i *bands.Item) uint32 { return uint32(i.Count) },
		func(i *bands.Item) uint32 { return i.ID },
		func(i *bands.Item) uint32 { return t.Line(i.Largest) },
		func(i *bands.Item) uint32 { return uint32(t.Kind(i.Largest)) },
	} {
		for i := range tile.Items {
			w.u32(of(&tile.Items[i]))
		}
		w.align()
	}
	return w.b
}

type tileWriter struct{ b []byte }

func (w *tileWriter) u32(n uint32) { w.b = binary.LittleEndian.AppendUint32(w.b, n) }

func (w *tileWriter) f64(f float64) {
	w.b = binary.LittleEndian.AppendUint64(w.b, math.Float64bits(f))
}

func (w *tileWriter) floats(items []bands.Item, of func(*bands.Item) int64) {
	for i := range items {
		w.f64(float64(of(&items[i])))
	}
}

func (w *tileWriter) numbers(list []uint32) {
	for _, n := range list {
		w.u32(n)
	}
	w.align()
}

// align pads to a multiple of 8 bytes.
func (w *tileWriter) align() {
	if len(w.b)%8 != 0 {
		w.u32(0)
	}
}

// curveJSON is the levels of columns.
type curveJSON struct {
	Moment    []uint32 `json:"moment"`
	High      []int64  `json:"high"`
	Low       []int64  `json:"low"`
	Allocated []int64  `json:"allocated"`
	Reserved  []*int64 `json:"reserved"`
}

func curve(s *session, r *http.Request, q *request.Query) (answer, error) {
	a, err := s.asked(q)
	if err != nil {
		return answer{}, err
	}
	axis, x0, x1 := a.axisOf(q)
	n := q.Number("columns", maxCurve)
	if n < 1 {
		q.Fail("columns=%d: want at least 1", n)
	}
	return s.respond(r, q, a, func(l *bands.Layer) (any, error) {
		var out curveJSON
		for _, c := range a.Columns(axis, x0, x1, n) {
			m := l.Highest(c.From, c.To)
			allocated, reserved, known := a.Allocated(m)
			out.Moment, out.High, out.Low = append(out.Moment, m), append(out.High, l.Level(m)), append(out.Low, l.Level(l.Lowest(c.From, c.To)))
			out.Allocated = append(out.Allocated, allocated)
			if known {
				out.Reserved = append(out.Reserved, &reserved)
			} else {
				out.Reserved = append(out.Reserved, nil)
			}
		}
		return out, nil
	})
}
