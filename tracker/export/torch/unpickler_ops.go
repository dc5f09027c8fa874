package torch

import (
	"fmt"
	"slices"
)

// run does what one opcode says.
func (u *unpickler) run(code byte) error {
	switch code {
	case opProto:
		version, err := u.byte()
		if err == nil && (version < 2 || version > maxPickleProtocol) {
			err = fmt.Errorf("a pickle of protocol %d, this program reads 2 to %d", version, maxPickleProtocol)
		}
		return err
	case opFrame:
		_, err := u.number(8)
		return err
	case opMark:
		return u.push(mark{})
	case opPop:
		_, err := u.pop()
		return err
	case opPopMark:
		_, err := u.popMark()
		return err
	case opDup:
		v, err := top[any](u)
		return u.orPush(v, err)
	case opMemoize, opBinPut, opLongBinPut, opBinGet, opLongBinGet:
		return u.remember(code)
	case opEmptyList, opEmptyTuple, opEmptySet:
		return u.push(new(sequence))
	case opEmptyDict:
		return u.push(new(dict))
	case opAppend, opAppends, opAddItems, opSetItem, opSetItems:
		return u.extend(code)
	case opList, opTuple, opFrozenSet, opTuple1, opTuple2, opTuple3, opDict:
		return u.build(code)
	case opGlobal, opStackGlobal, opReduce, opBuild, opInst, opObj, opNewObj, opNewObjEx, opExt1, opExt1 + 1, opExt4, opPersID, opBinPersID:
		return fmt.Errorf("opcode %q would run code: not a memory snapshot, or not one to trust", code)
	default:
		v, err := u.scalar(code)
		return u.orPush(v, err)
	}
}

func (u *unpickler) orPush(v any, err error) error {
	if err != nil {
		return err
	}
	return u.push(v)
}

// scalar reads a value that holds no others.
func (u *unpickler) scalar(code byte) (any, error) {
	switch code {
	case opNone:
		return nil, nil
	case opNewTrue:
		return true, nil
	case opNewFalse:
		return false, nil
	case opBinInt:
		v, err := u.number(4)
		return int64(int32(v)), err
	case opBinInt1:
		v, err := u.number(1)
		return int64(v), err
	case opBinInt2:
		v, err := u.number(2)
		return int64(v), err
	case opLong1:
		return u.long(1)
	case opLong4:
		return u.long(4)
	case opBinFloat:
		return u.float()
	case opShortBinUnicode, opShortBinBytes, opShortBinString:
		return u.text(1)
	case opBinUnicode, opBinBytes, opBinString:
		return u.text(4)
	case opBinUnicode8, opBinBytes8, opByteArray8:
		return u.text(8)
	}
	return nil, fmt.Errorf("opcode %q is none of plain data in protocols 2 to %d: not a memory snapshot", code, maxPickleProtocol)
}

// remember stores the top of the stack, or pushes what was stored.
func (u *unpickler) remember(code byte) error {
	var index uint64
	var err error
	switch code {
	case opMemoize:
		index = uint64(len(u.memo))
	case opBinPut, opBinGet:
		index, err = u.number(1)
	default:
		index, err = u.number(4)
	}
	if err != nil {
		return err
	}
	if code == opBinGet || code == opLongBinGet {
		v, ok := u.memo[uint32(index)]
		if !ok {
			return fmt.Errorf("value %d was never stored", index)
		}
		return u.push(v)
	}
	v, err := top[any](u)
	if err != nil {
		return err
	}
	u.memo[uint32(index)] = v
	return nil
}

// extend moves values from the stack's top into the list or dict below.
func (u *unpickler) extend(code byte) error {
	values, err := u.take(code)
	if err != nil {
		return err
	}
	if code == opSetItem || code == opSetItems {
		d, err := top[*dict](u)
		if err != nil {
			return err
		}
		return d.add(values)
	}
	l, err := top[*sequence](u)
	if err != nil {
		return err
	}
	l.items = append(l.items, values...)
	return nil
}

// take pops the values that the opcode is about, which are valid until the next push.
func (u *unpickler) take(code byte) ([]any, error) {
	n := 0
	switch code {
	case opAppend, opTuple1:
		n = 1
	case opSetItem, opTuple2:
		n = 2
	case opTuple3:
		n = 3
	default:
		return u.popMark()
	}
	if len(u.stack) < n {
		return nil, errUnderflow
	}
	values := u.stack[len(u.stack)-n:]
	u.stack = u.stack[:len(u.stack)-n]
	return values, nil
}

func (d *dict) add(values []any) error {
	if len(values)%2 != 0 {
		return fmt.Errorf("%d values for a dict, want pairs", len(values))
	}
	d.index = nil
	d.items = slices.Grow(d.items, len(values)/2)
	for i := 0; i < len(values); i += 2 {
		switch values[i].(type) {
		case string, int64, bool, nil: // others cannot be compared, or are no keys of a snapshot
			d.items = append(d.items, item{values[i], values[i+1]})
		}
	}
	return nil
}

// build replaces values at the stack's top by one that holds them.
func (u *unpickler) build(code byte) error {
	values, err := u.take(code)
	if err != nil {
		return err
	}
	if code == opDict {
		d := new(dict)
		if err := d.add(values); err != nil {
			return err
		}
		return u.push(d)
	}
	return u.push(&sequence{items: slices.Clone(values)})
}
