package plain

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
)

// pickle interprets a pickle that only builds plain data, by the rules of Python's pickletools.
type pickle struct {
	*Data
	input
	stack []Value
	marks []int // where in the stack
	memo  memo

	watch *watch // of ReadPickleBeside; nil for others
	until string // the key of ReadPickleUntil; "" for others

	keeps   bool // calls are kept, as ReadObjects says
	unnamed int  // how many keys of dicts were given a name
}

// ReadPickle reads a pickle of protocol 0 to 5. It runs nothing: it refuses a pickle that would
// call code. The error says where the file is torn, or that it is no such pickle.
func ReadPickle(r *bounded.Reader) (*Data, Value, error) {
	return readPickle(newPickle(r))
}

func newPickle(r *bounded.Reader) *pickle {
	return &pickle{Data: newData(r), input: input{r: r}, memo: memo{room: r, far: make(map[uint64]Value)}}
}

// ReadPickleUntil reads a pickle as ReadPickle does, up to a key of the outermost dict, and returns the dict with the keys that
// Python wrote before that one. found is false if the pickle has no such key.
func ReadPickleUntil(r *bounded.Reader, key string) (d *Data, top Value, found bool, err error) {
	p := newPickle(r)
	p.until = key
	if d, top, err = readPickle(p); err != nil || len(p.marks) == 0 {
		return d, top, false, err
	}
	top, members := p.stack[0], p.stack[1:len(p.stack)-1]
	return d, top, true, p.setPairs(top, members)
}

// reached reports whether the top of the stack is the key of ReadPickleUntil, and the stack has the members of the outermost
// dict before it.
func (p *pickle) reached() bool {
	n := len(p.stack)
	return len(p.marks) == 1 && p.marks[0] == 1 && n%2 == 0 && p.stack[0].kind == Dict && p.Str(p.stack[n-1]) == p.until
}

func readPickle(p *pickle) (*Data, Value, error) {
	for stop := false; !stop; {
		text, size := p.window()
		if size == 0 {
			return nil, Value{}, torn(p.end)
		}
		n, other, err := 0, false, p.makeRoom()
		if err == nil {
			n, other, err = p.common(text, size)
		}
		start := p.r.Offset() + int64(n)
		if err == nil {
			err = p.r.Discard(n)
		}
		if err == nil && other {
			stop, err = p.other()
		}
		if limit, ok := errors.AsType[*bounded.LimitError](err); ok && limit.Memory {
			limit.Read = start + 1 // the window was not counted yet
		}
		if err != nil {
			return nil, Value{}, fmt.Errorf("at byte %d: %w", start, err)
		}
		if p.until != "" && p.reached() {
			return p.Data, Value{}, nil
		}
	}
	if len(p.stack) != 1 || len(p.marks) != 0 {
		return nil, Value{}, fmt.Errorf("the pickle ends with %d values, want 1", len(p.stack)+len(p.marks))
	}
	return p.Data, p.stack[0], nil
}

// common runs the opcodes that nearly all of a large file consists of, as far as the text of size bytes has them whole. It
// returns where it stopped, and whether at another opcode: otherwise more text is needed, or room on the stack.
func (p *pickle) common(text []byte, size int) (at int, other bool, err error) {
	end := size
	if size == len(text) { // more may follow
		end = size - longest + 1
	}
	for at < end && len(p.stack) < cap(p.stack) {
		code, arg, n := text[at], text[at+1:], 1
		switch code {
		case opBinGet:
			n, err = 2, p.get(uint64(arg[0]))
		case opLongBinGet:
			n, err = 5, p.get(uint64(binary.LittleEndian.Uint32(arg)))
		case opMemoize:
			err = p.put(p.memo.next())
		case opBinPut:
			n, err = 2, p.put(uint64(arg[0]))
		case opLongBinPut:
			n, err = 5, p.put(uint64(binary.LittleEndian.Uint32(arg)))
		case opNone:
			p.stack = append(p.stack, Value{})
		case opNewTrue, opNewFalse:
			p.stack = append(p.stack, boolean(code == opNewTrue))
		case opBinInt1:
			n, p.stack = 2, append(p.stack, number(int64(arg[0])))
		case opBinInt2:
			n, p.stack = 3, append(p.stack, number(int64(binary.LittleEndian.Uint16(arg))))
		case opBinInt:
			n, p.stack = 5, append(p.stack, number(int64(int32(binary.LittleEndian.Uint32(arg)))))
		case opLong1:
			if arg[0] == 0 || arg[0] > 8 {
				return at, true, nil
			}
			n = 2 + int(arg[0])
			p.stack = append(p.stack, number(signed(binary.LittleEndian.Uint64(arg[1:]), int(arg[0]))))
		case opShortBinUnicode:
			if n = 2 + int(arg[0]); at+n > size {
				return at, true, nil
			}
			if err = p.orPush(p.text(arg[1 : n-1])); p.until != "" && err == nil && p.reached() {
				return at + n, false, nil
			}
		case opEmptyList, opEmptyTuple:
			err = p.orPush(p.newList())
		case opEmptyDict:
			err = p.orPush(p.newDict())
		case opMark:
			var filled int
			if filled, err = p.storedDicts(arg[:size-at-1]); filled == 0 && err == nil {
				err = p.mark()
			}
			n += filled
		case opAppend, opAppends, opSetItem, opSetItems:
			err = p.extendTop(code)
		case opTuple1, opTuple2, opTuple3:
			err = p.build(code)
		default:
			return at, true, nil
		}
		if err == nil && at+n > size {
			err = torn(p.end)
		}
		if err != nil {
			return at, false, err
		}
		at += n
	}
	return at, false, nil
}

// storedDicts runs the opcodes after a mark if they fill the empty list below it with dicts that were stored before: a call
// stack, whose frames other stacks have too. It returns the length of these opcodes, 0 if they are others. Then it has done
// nothing.
func (p *pickle) storedDicts(text []byte) (n int, err error) {
	list, err := p.top()
	if err != nil || list.kind != List || *p.lists.numbers.at(list.n) != 0 {
		return 0, nil //nolint:nilerr // a mark needs nothing below it
	}
	stored, packing := p.memo.near.len(), append(p.packing[:0], packedDicts)
	for n < len(text) && len(packing) <= packedDicts*maxPacked {
		var index uint64
		switch {
		case text[n] == opBinGet && n+2 <= len(text):
			index = uint64(text[n+1])
			n += 2
		case text[n] == opLongBinGet && n+5 <= len(text):
			index = uint64(binary.LittleEndian.Uint32(text[n+1:]))
			n += 5
		case text[n] == opAppends && n > 0:
			p.packing = packing
			if p.watch != nil {
				p.watch.extends(p, list, nil)
			}
			return n + 1, p.share(p.lists.numbers.at(list.n), packing)
		default:
			return 0, nil
		}
		if index >= stored {
			return 0, nil
		}
		v := p.memo.near.at(int64(index))
		if v.kind != Dict || v.n > math.MaxUint32 {
			return 0, nil
		}
		packing = binary.LittleEndian.AppendUint32(packing, uint32(v.n))
	}
	return 0, nil
}

// other runs the next opcode, which is none of the common ones.
func (p *pickle) other() (stop bool, err error) {
	code, err := p.byte()
	if err != nil || code == opStop {
		return true, err
	}
	return false, p.run(code)
}

func (p *pickle) run(code byte) error {
	switch code {
	case opProto:
		version, err := p.byte()
		if err == nil && version > maxProtocol {
			err = fmt.Errorf("a pickle of protocol %d, this program reads 0 to %d", version, maxProtocol)
		}
		return err
	case opFrame:
		_, err := p.number(8)
		return err
	case opPop:
		if p.floor() == len(p.stack) && len(p.marks) > 0 {
			p.marks = p.marks[:len(p.marks)-1]
			return nil
		}
		_, err := p.take(1)
		return err
	case opPopMark:
		_, err := p.popMark()
		return err
	case opDup:
		v, err := p.top()
		return p.orPush(v, err)
	case opPut, opGet:
		return p.remember(code)
	case opAddItems:
		return p.extendTop(code)
	case opList, opTuple, opFrozenSet, opDict:
		return p.build(code)
	}
	if bytes.IndexByte([]byte(running), code) >= 0 {
		if p.keeps {
			if ok, err := p.object(code); ok {
				return err
			}
			return fmt.Errorf("opcode %q needs what is not in the file", code)
		}
		return fmt.Errorf("opcode %q would run code: not a memory snapshot, or not one to trust", code)
	}
	v, err := p.scalar(code)
	return p.orPush(v, err)
}

// scalar reads a value that holds no others yet.
func (p *pickle) scalar(code byte) (Value, error) {
	switch code {
	case opEmptySet:
		return p.newList()
	case opLong1:
		return p.long(1)
	case opLong4:
		return p.long(4)
	case opBinFloat:
		v, err := p.number(8)
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], v)
		return float(math.Float64frombits(binary.BigEndian.Uint64(b[:]))), err
	case opShortBinUnicode, opShortBinBytes, opShortBinString:
		return p.sized(1)
	case opBinUnicode, opBinBytes, opBinString:
		return p.sized(4)
	case opBinUnicode8, opBinBytes8, opByteArray8:
		return p.sized(8)
	case opInt, opLong, opFloat, opString, opUnicode:
		return p.written(code)
	}
	return Value{}, fmt.Errorf("opcode %q is none of plain data in protocols 0 to %d", code, maxProtocol)
}

var errUnderflow = errors.New("an opcode finds too few values")

// maxStack bounds the values that are in no list or dict yet. Python writes a thousand at once.
const maxStack = 1 << 21

func (p *pickle) push(v Value) error {
	if len(p.stack) == cap(p.stack) {
		if err := p.makeRoom(); err != nil {
			return err
		}
	}
	p.stack = append(p.stack, v)
	return nil
}

// makeRoom makes room for a value on the stack.
func (p *pickle) makeRoom() error {
	if len(p.stack) < cap(p.stack) {
		return nil
	}
	if len(p.stack) >= maxStack {
		return fmt.Errorf("%d values wait for a list or dict", len(p.stack))
	}
	more := max(1024, cap(p.stack))
	if err := p.r.Use(valueBytes * int64(more)); err != nil {
		return err
	}
	p.stack = slices.Grow(p.stack, more)
	return nil
}

func (p *pickle) orPush(v Value, err error) error {
	if err != nil {
		return err
	}
	return p.push(v)
}

func (p *pickle) mark() error {
	if len(p.marks) >= maxDepth {
		return fmt.Errorf("%d lists and dicts lie within each other", len(p.marks))
	}
	p.marks = append(p.marks, len(p.stack))
	return nil
}

// maxDepth bounds how deeply values are nested. Those of a snapshot are six deep.
const maxDepth = 10_000

// floor is where the stack of the latest mark begins.
func (p *pickle) floor() int {
	if len(p.marks) == 0 {
		return 0
	}
	return p.marks[len(p.marks)-1]
}

func (p *pickle) top() (Value, error) {
	if len(p.stack) == p.floor() {
		return Value{}, errUnderflow
	}
	return p.stack[len(p.stack)-1], nil
}

// take pops n values, which are valid until the next push.
func (p *pickle) take(n int) ([]Value, error) {
	if len(p.stack)-p.floor() < n {
		return nil, errUnderflow
	}
	values := p.stack[len(p.stack)-n:]
	p.stack = p.stack[:len(p.stack)-n]
	return values, nil
}

// popMark pops what is above the last mark. It is valid until the next push.
func (p *pickle) popMark() ([]Value, error) {
	if len(p.marks) == 0 {
		return nil, fmt.Errorf("%w: no mark", errUnderflow)
	}
	values, err := p.take(len(p.stack) - p.floor())
	p.marks = p.marks[:len(p.marks)-1]
	return values, err
}

// arguments pops the values that the opcode is about.
func (p *pickle) arguments(code byte) ([]Value, error) {
	switch code {
	case opAppend, opTuple1:
		return p.take(1)
	case opSetItem, opTuple2:
		return p.take(2)
	case opTuple3:
		return p.take(3)
	}
	return p.popMark()
}

// extendTop moves values from the stack's top into the list or dict below.
func (p *pickle) extendTop(code byte) error {
	values, err := p.arguments(code)
	if err != nil {
		return err
	}
	into, err := p.top()
	if err != nil {
		return err
	}
	want := List
	if code == opSetItem || code == opSetItems {
		want = Dict
	}
	if into.kind == Called {
		if into, err = p.items(into, want); err != nil {
			return err
		}
	}
	if into.kind != want {
		return fmt.Errorf("an opcode finds %v, want %v", into.kind, want)
	}
	if p.watch != nil {
		p.watch.extends(p, into, values)
	}
	if want == List {
		return p.extend(into, values)
	}
	return p.setPairs(into, values)
}

func (p *pickle) setPairs(into Value, values []Value) error {
	if len(values)%2 != 0 {
		return fmt.Errorf("%d values for a dict, want pairs", len(values))
	}
	if p.keeps {
		if err := p.named(values); err != nil {
			return err
		}
	}
	return p.set(into, values)
}

// build replaces values at the stack's top by one that holds them.
func (p *pickle) build(code byte) error {
	values, err := p.arguments(code)
	if err != nil {
		return err
	}
	var v Value
	if code == opDict {
		if v, err = p.newDict(); err == nil {
			err = p.setPairs(v, values)
		}
	} else if v, err = p.newList(); err == nil {
		err = p.extend(v, values)
	}
	return p.orPush(v, err)
}

// remember stores the top of the stack, or pushes what was stored, by a place that is written in text.
func (p *pickle) remember(code byte) error {
	line, err := p.readLine()
	if err != nil {
		return err
	}
	index, err := strconv.ParseUint(string(line), 10, 63)
	switch {
	case err != nil:
		return fmt.Errorf("the place %.20q is no number", line)
	case code == opGet:
		return p.get(index)
	}
	return p.put(index)
}

// get pushes what was stored.
func (p *pickle) get(index uint64) error {
	v, ok := p.memo.load(index)
	if !ok {
		return fmt.Errorf("value %d was never stored", index)
	}
	return p.push(v)
}

// put stores the top of the stack.
func (p *pickle) put(index uint64) error {
	v, err := p.top()
	if err != nil {
		return err
	}
	return p.memo.store(index, v)
}

// long reads an integer in two's complement. No snapshot has one of more than 64 bits.
func (p *pickle) long(lengthBytes int) (Value, error) {
	n, err := p.number(lengthBytes)
	if err != nil || n == 0 {
		return number(0), err
	}
	if n > 9 && n <= maxShort && p.keeps {
		if _, err := p.r.Peek(int(n)); err != nil {
			return Value{}, torn(err)
		}
		return Value{}, p.r.Discard(int(n))
	}
	if n > 9 {
		return Value{}, fmt.Errorf("an integer of %d bytes, want at most 9", n)
	}
	v, err := p.number(int(min(n, 8)))
	if err != nil {
		return Value{}, err
	}
	if n == 9 { // an address in the upper half: the last byte is the sign
		if sign, err := p.byte(); err == nil && sign != 0 && p.keeps {
			return Value{}, nil
		} else if err != nil || sign != 0 {
			return Value{}, errors.Join(err, errors.New("an integer of more than 64 bits"))
		}
		return number(int64(v)), nil
	}
	return number(signed(v, int(n))), nil
}

// sized reads a string that follows its length, a number of lengthBytes bytes.
func (p *pickle) sized(lengthBytes int) (Value, error) {
	n, err := p.number(lengthBytes)
	if err != nil {
		return Value{}, err
	}
	if n > maxString {
		return Value{}, fmt.Errorf("a string of %d bytes, want at most %d", n, maxString)
	}
	if n <= maxShort { // certain to fit into the buffer
		b, err := p.r.Peek(int(n))
		if err != nil {
			return Value{}, torn(err)
		}
		v, err := p.text(b)
		if err != nil {
			return Value{}, err
		}
		return v, p.r.Discard(int(n))
	}
	b, err := io.ReadAll(io.LimitReader(p.r, int64(n)))
	if err == nil && uint64(len(b)) < n {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return Value{}, torn(err)
	}
	return p.text(b)
}

// written reads an argument that is text up to the end of the line, as in protocol 0.
func (p *pickle) written(code byte) (Value, error) {
	line, err := p.readLine()
	if err != nil {
		return Value{}, err
	}
	switch code {
	case opUnicode:
		b, err := unescape(line, false)
		if err != nil {
			return Value{}, err
		}
		return p.text(b)
	case opString:
		if n := len(line); n < 2 || line[0] != line[n-1] || line[0] != '\'' && line[0] != '"' {
			return Value{}, fmt.Errorf("the string %.20q has no quotes", line)
		}
		b, err := unescape(line[1:len(line)-1], true)
		if err != nil {
			return Value{}, err
		}
		return p.text(b)
	case opFloat:
		f, err := strconv.ParseFloat(string(line), 64)
		if err != nil {
			return Value{}, fmt.Errorf("%.20q is no float", line)
		}
		return float(f), nil
	}
	switch string(line) { // so protocol 0 writes bools
	case "00":
		return boolean(false), nil
	case "01":
		return boolean(true), nil
	}
	return parseInt(bytes.TrimSuffix(line, []byte("L")))
}
