package unwind

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/assert"
)

// tableOf is a table with one function from 0x1000 to 0x1100.
func tableOf(shared, function []byte) *Table {
	var data []byte
	add := func(id uint32, body []byte) {
		data = binary.LittleEndian.AppendUint32(data, uint32(4+len(body)))
		data = binary.LittleEndian.AppendUint32(data, id)
		data = append(data, body...)
	}
	add(0, shared)
	begin := append(binary.LittleEndian.AppendUint64(nil, 0x1000), 0, 1, 0, 0, 0, 0, 0, 0)
	add(uint32(len(data)+4), append(begin, function...))
	t := &Table{frames: data, cies: make(map[int]*cie), rules: make(map[uint64]*rule)}
	t.index = t.scan()
	return t
}

// arm is what the entries of ARM's functions have in common: code in fours, data in minus eights, x30, and the CFA is sp.
var arm = []byte{1, 0, 4, 0x78, 30, cfaDefine, 31, 0}

// TestWalkOfARM64: a function in the middle of its prologue, with a signed return address, called by one without a
// table that has a frame pointer.
func TestWalkOfARM64(t *testing.T) {
	for _, signs := range []byte{cfaNegateRAState, cfaNegateRAWithPC} {
		walkOfARM64(t, signs, ARM64, 0xabcd<<48)
		walkOfARM64(t, signs, ARM64.Below(0x7f_ffff_f123), 0x1abcd<<39)
	}
}

func walkOfARM64(t *testing.T, signs byte, machine *Machine, signature uint64) {
	table := tableOf(arm, []byte{
		cfaAdvance | 1, signs,
		cfaAdvance | 1, cfaDefineOffset, 32, cfaOffset | 29, 4, cfaOffset | 30, 3, // stp x29, x30, [sp, -32]!
		cfaAdvance | 4, cfaOffset | 19, 2,
	})
	stack := make([]byte, 80)
	put := func(at int, v uint64) { binary.LittleEndian.PutUint64(stack[at:], v) }
	put(0, 0x7030) // x29 of the caller
	put(8, 0x2004|signature)
	put(16, 19)
	put(48, 0) // the outermost frame
	put(56, 0)
	c := Thread{Machine: machine, Stack: stack}
	c.Registers[31], c.Registers[30], c.Registers[29] = 0x7000, 0x1040, 0x7030
	find := func(pc uint64) (*Table, uint64, bool) {
		if pc < 0x2000 {
			return table, pc, true
		}
		return nil, 0, pc < 0x3000
	}
	frames, end := c.Walk(nil, 64, find, nil)
	assert.Equal(t, []uint64{0x1040, 0x2004}, frames)
	assert.Equal(t, Outermost, end)

	put(8, 0x4004) // not code
	frames, end = c.Walk(nil, 64, find, nil)
	assert.Equal(t, []uint64{0x1040}, frames)
	assert.Equal(t, NoCaller, end)
}

// TestHiddenReturnAddress: the kernel put a trampoline in the place of a return address. What was there is known at one place of the stack.
func TestHiddenReturnAddress(t *testing.T) {
	table := tableOf(arm, []byte{cfaAdvance | 1, cfaDefineOffset, 16, cfaOffset | 30, 1})
	find := func(pc uint64) (*Table, uint64, bool) { return table, pc, pc < 0x1100 }
	stack := make([]byte, 48)
	binary.LittleEndian.PutUint64(stack[8:], 0x7ffff000)
	for sp, test := range map[uint64]struct {
		frames []uint64
		end    End
	}{
		0x7010: {[]uint64{0x1040, 0x1050}, Outermost},
		0x7020: {[]uint64{0x1040}, AtTrampoline},
	} {
		c := Thread{Machine: ARM64, Stack: stack, Trampoline: Trampoline{Address: 0x7ffff000, Return: 0x1050, SP: sp}}
		c.Registers[31], c.Registers[30] = 0x7000, 0x1040
		var told []uint64
		frames, end := c.Walk(nil, 64, find, func(pc uint64, s CompactRule) {
			if s.Base == FromTrampoline {
				told = append(told, pc)
			}
		})
		assert.Equal(t, test.frames, frames)
		assert.Equal(t, test.end, end)
		assert.Equal(t, []uint64{0x7ffff000}, told)
	}
	c := Thread{Machine: ARM64, Stack: stack, Trampoline: Trampoline{Address: 0x7ffff000, Return: 0x1050, SP: 0x7000}}
	c.Registers[31], c.Registers[30] = 0x7000, 0x7ffff000 // the first that the probe did not know
	frames, _ := c.Walk(nil, 64, find, nil)
	assert.Equal(t, uint64(0x1050), frames[0])
}

// TestBeyondNeedsAFramePointer: where a walk ends at a function that keeps none, the register has that of a frame further out,
// and the callers between are unknown.
func TestBeyondNeedsAFramePointer(t *testing.T) {
	for name, test := range map[string]struct {
		saves []byte
		want  []uint64
	}{
		"kept": {[]byte{cfaOffset | 29, 8, cfaOffset | 30, 7}, []uint64{0x2004, 0x2008}},
		"none": {[]byte{cfaOffset | 30, 7}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := Thread{Machine: ARM64, Stack: make([]byte, 8)} // its return address is beyond
			c.Registers[31], c.Registers[30], c.Registers[29] = 0x7000, 0x1040, 0x7000
			table := tableOf(arm, append([]byte{cfaAdvance | 1, cfaDefineOffset, 64}, test.saves...))
			frames, end := c.Walk(nil, 64, func(pc uint64) (*Table, uint64, bool) { return table, pc, pc < 0x2000 }, nil)
			assert.Equal(t, []uint64{0x1040}, frames)
			assert.Equal(t, BeyondCopy, end)
			assert.Equal(t, test.want, c.Beyond([]uint64{0x1040, 0x2004, 0x2008}))
		})
	}
}

func TestFunctionsThatCannotBeLeft(t *testing.T) {
	for name, test := range map[string]struct {
		instructions []byte
		end          End
	}{
		"the outermost":            {[]byte{cfaUndefined, 30}, Outermost},
		"no return address":        {nil, NoCaller},
		"a register in a register": {[]byte{cfaOffset | 30, 1, cfaRegister, 30, 5, cfaDefineOffset, 16}, Outermost},
		"no such instruction":      {[]byte{0x3f, 0}, NoCaller},
		"an operand is missing":    {[]byte{cfaDefine, 31}, NoCaller},
		"states not remembered":    {[]byte{cfaRestoreState}, NoCaller},
		"a frame that is no step":  {[]byte{cfaOffset | 30, 0, cfaDefine, 31, 0}, NoCaller},
		"an expression":            {[]byte{cfaDefineExpression, 3, opBreg0 + 31, 16, opDeref, cfaOffset | 30, 1}, BeyondCopy},
		"no such operation":        {[]byte{cfaDefineExpression, 1, 0xff, cfaOffset | 30, 1}, NoCaller},
	} {
		t.Run(name, func(t *testing.T) {
			c := Thread{Machine: ARM64, Stack: []byte{1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0}}
			c.Registers[31], c.Registers[30], c.Registers[29] = 0x7000, 0x1040, 1
			table := tableOf(arm, test.instructions)
			_, end := c.Walk(nil, 64, func(pc uint64) (*Table, uint64, bool) { return table, pc, pc < 0x2000 }, nil)
			assert.Equal(t, test.end, end)
		})
	}
}

func FuzzTable(f *testing.F) {
	f.Add(tableOf(arm, []byte{cfaAdvance | 1, cfaDefineOffset, 32, cfaOffset | 30, 3}).frames, uint64(0x1010))
	f.Fuzz(func(t *testing.T, data []byte, address uint64) {
		table := &Table{frames: data, cies: make(map[int]*cie), rules: make(map[uint64]*rule)}
		table.index = table.scan()
		c := Thread{Machine: AMD64, Stack: make([]byte, 256)}
		c.Registers[7], c.Registers[16] = 0x7000, address
		frames, _ := c.Walk(nil, 16, func(pc uint64) (*Table, uint64, bool) { return table, pc, true }, nil)
		assert.LessOrEqual(t, len(frames), 16)
	})
}
