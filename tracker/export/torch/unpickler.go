package torch

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// The opcodes that Python writes beside those of our own: protocols 2 to 5 of
// plain data. Those that call code are not among them.
const (
	opPop             = '0'
	opPopMark         = '1'
	opDup             = '2'
	opNone            = 'N'
	opNewTrue         = 0x88
	opLong4           = 0x8b
	opBinFloat        = 'G'
	opBinUnicode8     = 0x8d
	opShortBinBytes   = 'C'
	opBinBytes        = 'B'
	opBinBytes8       = 0x8e
	opByteArray8      = 0x96
	opShortBinString  = 'U'
	opBinString       = 'T'
	opAppend          = 'a'
	opList            = 'l'
	opEmptyTuple      = ')'
	opTuple1          = 0x85
	opTuple3          = 0x87
	opTuple           = 't'
	opSetItem         = 's'
	opDict            = 'd'
	opEmptySet        = 0x8f
	opAddItems        = 0x90
	opFrozenSet       = 0x91
	opBinPut          = 'q'
	opLongBinPut      = 'r'
	opFrame           = 0x95
	opGlobal          = 'c'
	opStackGlobal     = 0x93
	opReduce          = 'R'
	opBuild           = 'b'
	opInst            = 'i'
	opObj             = 'o'
	opNewObj          = 0x81
	opNewObjEx        = 0x92
	opExt1            = 0x82
	opExt4            = 0x84
	opPersID          = 'P'
	opBinPersID       = 'Q'
	maxPickleProtocol = 5
)

// The values of a pickle are nil, bool, int64, float64, string, and these. A
// list, tuple or set is a *sequence.
type (
	sequence struct{ items []any }
	dict     struct {
		items []item
		index map[any]int // of a large one: the last item of each key; nil while there is none
	}
	item struct {
		key   any
		value any
	}
	mark struct{}
)

// get returns the value of a string key; of a key that stands twice, the last.
func (d *dict) get(key string) (any, bool) {
	if len(d.items) > maxSearch {
		i, ok := d.indexed()[key]
		if !ok {
			return nil, false
		}
		return d.items[i].value, true
	}
	for _, e := range slices.Backward(d.items) {
		if e.key == key {
			return e.value, true
		}
	}
	return nil, false
}

// maxSearch is how many items are looked at one by one. Those of a snapshot have
// fewer; a hostile file may have many, and ask for them often.
const maxSearch = 64

func (d *dict) indexed() map[any]int {
	if d.index == nil {
		d.index = make(map[any]int)
		for i, e := range d.items {
			d.index[e.key] = i
		}
	}
	return d.index
}

// unpickler runs a pickle that only builds plain data. It follows the rules of
// Python's pickletools, refuses what would call code, and takes memory in
// proportion to what it has read.
type unpickler struct {
	r       *bufio.Reader
	at      int64 // bytes read
	stack   []any
	memo    map[uint32]any
	strings map[string]string // one copy of each short string
}

func unpickle(r io.Reader) (any, error) {
	u := &unpickler{r: bufio.NewReaderSize(r, 1<<16), memo: make(map[uint32]any), strings: make(map[string]string)}
	for {
		start := u.at
		code, err := u.byte()
		if err != nil {
			return nil, err
		}
		if code == opStop {
			return u.result()
		}
		if err := u.run(code); err != nil {
			return nil, fmt.Errorf("at byte %d: %w", start, err)
		}
	}
}

func (u *unpickler) result() (any, error) {
	if len(u.stack) != 1 {
		return nil, fmt.Errorf("the pickle ends with %d values, want 1", len(u.stack))
	}
	return u.stack[0], nil
}

var errUnderflow = errors.New("an opcode finds too few values")

func (u *unpickler) push(v any) error {
	u.stack = append(u.stack, v)
	return nil
}

func (u *unpickler) pop() (any, error) {
	if len(u.stack) == 0 {
		return nil, errUnderflow
	}
	v := u.stack[len(u.stack)-1]
	u.stack = u.stack[:len(u.stack)-1]
	return v, nil
}

// popMark returns what stands above the last mark. It is valid until the next push.
func (u *unpickler) popMark() ([]any, error) {
	for i := len(u.stack) - 1; i >= 0; i-- {
		if _, ok := u.stack[i].(mark); ok {
			items := u.stack[i+1:]
			u.stack = u.stack[:i]
			return items, nil
		}
	}
	return nil, fmt.Errorf("%w: no mark", errUnderflow)
}

// top returns the value at the top as a T.
func top[T any](u *unpickler) (T, error) {
	var zero T
	if len(u.stack) == 0 {
		return zero, errUnderflow
	}
	v, ok := u.stack[len(u.stack)-1].(T)
	if !ok {
		return zero, fmt.Errorf("an opcode finds a %T, want a %T", u.stack[len(u.stack)-1], zero)
	}
	return v, nil
}

func (u *unpickler) byte() (byte, error) {
	b, err := u.r.ReadByte()
	if err != nil {
		return 0, torn(err)
	}
	u.at++
	return b, nil
}

// torn says what the end of the file means here.
func torn(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("the file is torn: it ends before the pickle does: %w", io.ErrUnexpectedEOF)
	}
	return err
}

// number reads a little-endian number.
func (u *unpickler) number(bytes int) (uint64, error) {
	var b [8]byte
	n, err := io.ReadFull(u.r, b[:bytes])
	u.at += int64(n)
	if err != nil {
		return 0, torn(err)
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}

// maxString bounds a string: the longest of a snapshot are names of functions.
const maxString = 1 << 24

// text reads a string whose length stands before it in that many bytes.
func (u *unpickler) text(lengthBytes int) (string, error) {
	n, err := u.number(lengthBytes)
	if err != nil {
		return "", err
	}
	if n > maxString {
		return "", fmt.Errorf("a string of %d bytes, want at most %d", n, maxString)
	}
	if n <= 512 { // it is likely to come again, and certain to be in the buffer
		b, err := u.r.Peek(int(n))
		if err != nil {
			return "", torn(err)
		}
		s, ok := u.strings[string(b)]
		if !ok {
			s = string(b)
			u.strings[s] = s
		}
		u.r.Discard(int(n))
		u.at += int64(n)
		return s, nil
	}
	b, err := io.ReadAll(io.LimitReader(u.r, int64(n)))
	u.at += int64(len(b))
	if err == nil && uint64(len(b)) < n {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return "", torn(err)
	}
	return string(b), nil
}

// long reads an integer in two's complement. More than eight bytes do not come
// in a snapshot.
func (u *unpickler) long(lengthBytes int) (int64, error) {
	n, err := u.number(lengthBytes)
	if err != nil || n == 0 {
		return 0, err
	}
	if n > 9 {
		return 0, fmt.Errorf("an integer of %d bytes, want at most 9", n)
	}
	v, err := u.number(int(min(n, 8)))
	if err != nil {
		return 0, err
	}
	if n == 9 { // an address in the upper half: the last byte is the sign
		if sign, err := u.byte(); err != nil || sign != 0 {
			return 0, errors.Join(err, errors.New("an integer of more than 64 bits"))
		}
		return int64(v), nil
	}
	shift := 64 - 8*n
	return int64(v<<shift) >> shift, nil
}

func (u *unpickler) float() (float64, error) {
	v, err := u.number(8)
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	return math.Float64frombits(binary.BigEndian.Uint64(b[:])), err
}
