package recordings

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// list is a list or a tuple; dict has only the string keys.
type (
	list struct{ items []any }
	dict map[string]any
	mark struct{}
)

// pickle reads a pickle of plain data, of a file that is trusted: it checks
// little. Package tracker/export/torch reads those of strangers.
type pickle struct {
	r     *bufio.Reader
	stack []any
	memo  map[uint64]any
}

func unpickle(r io.Reader) (value any, err error) {
	p := &pickle{r: bufio.NewReader(r), memo: make(map[uint64]any)}
	defer func() {
		if failure := recover(); failure != nil {
			err = fmt.Errorf("unpickle: %v", failure)
		}
	}()
	for {
		code := p.bytes(1)[0]
		if code == '.' {
			return p.pop(), nil
		}
		p.run(code)
	}
}

func (p *pickle) bytes(n uint64) []byte {
	b := make([]byte, n)
	if _, err := io.ReadFull(p.r, b); err != nil {
		panic(err)
	}
	return b
}

// number reads a little-endian number of some bytes.
func (p *pickle) number(n uint64) uint64 {
	var b [8]byte
	copy(b[:], p.bytes(n))
	return binary.LittleEndian.Uint64(b[:])
}

// long reads a number in two's complement.
func (p *pickle) long(n uint64) int64 {
	b := p.bytes(n)
	v := int64(0)
	for i := range b {
		v |= int64(b[i]) << (8 * i)
	}
	if n > 0 && n < 8 && b[n-1] >= 0x80 {
		v -= 1 << (8 * n)
	}
	return v
}

func (p *pickle) push(v any) { p.stack = append(p.stack, v) }

func (p *pickle) top() any { return p.stack[len(p.stack)-1] }

func (p *pickle) pop() any {
	v := p.top()
	p.stack = p.stack[:len(p.stack)-1]
	return v
}

// take returns the last n values, or those above the last mark if n is negative.
func (p *pickle) take(n int) []any {
	from := len(p.stack) - n
	if n < 0 {
		for from = len(p.stack) - 1; p.stack[from] != any(mark{}); from-- {
		}
	}
	items := append([]any(nil), p.stack[max(from, from-n):]...)
	p.stack = p.stack[:from]
	return items
}

func (p *pickle) set(pairs []any) {
	d := p.top().(dict)
	for i := 0; i+1 < len(pairs); i += 2 {
		if key, ok := pairs[i].(string); ok {
			d[key] = pairs[i+1]
		}
	}
}

func (p *pickle) add(items []any) {
	l := p.top().(*list)
	l.items = append(l.items, items...)
}

func (p *pickle) run(code byte) {
	switch code {
	case 0x80: // PROTO
		p.bytes(1)
	case 0x95: // FRAME
		p.bytes(8)
	case '(':
		p.push(mark{})
	case 'N':
		p.push(nil)
	case 0x88, 0x89:
		p.push(code == 0x88)
	case 'K':
		p.push(int64(p.number(1)))
	case 'M':
		p.push(int64(p.number(2)))
	case 'J':
		p.push(int64(int32(p.number(4))))
	case 0x8a: // LONG1
		p.push(p.long(p.number(1)))
	case 'G':
		p.push(math.Float64frombits(binary.BigEndian.Uint64(p.bytes(8))))
	case 0x8c, 0x8d, 'X', 'U', 'C': // strings, by the width of their length
		width := map[byte]uint64{0x8c: 1, 'U': 1, 'C': 1, 'X': 4, 0x8d: 8}[code]
		p.push(string(p.bytes(p.number(width))))
	case 0x94: // MEMOIZE
		p.memo[uint64(len(p.memo))] = p.top()
	case 'q':
		p.memo[p.number(1)] = p.top()
	case 'r':
		p.memo[p.number(4)] = p.top()
	case 'h':
		p.push(p.memo[p.number(1)])
	case 'j':
		p.push(p.memo[p.number(4)])
	case ']', ')':
		p.push(new(list))
	case 't':
		p.push(&list{p.take(-1)})
	case 0x85, 0x86, 0x87: // TUPLE1 to TUPLE3
		p.push(&list{p.take(int(code) - 0x84)})
	case 'a':
		p.add(p.take(1))
	case 'e':
		p.add(p.take(-1))
	case '}':
		p.push(make(dict))
	case 's':
		p.set(p.take(2))
	case 'u':
		p.set(p.take(-1))
	default:
		panic(fmt.Sprintf("opcode %#x is not known here", code))
	}
}
