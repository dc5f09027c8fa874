package plain

import (
	"bytes"
	"fmt"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
)

// Object is what a pickle would make by a call. Nothing is called: the parts stay as the pickle has them.
type Object struct {
	// Callee is the Global or other value that would be called. It is None for a persistent ID, which is Args.
	Callee Value
	Args   Value // a list
	State  Value // of the opcode BUILD; None if there is none
	Items  Value // the list or dict that the opcodes APPENDS and SETITEMS fill; None if there are none
}

// ReadObjects is like ReadPickle, but keeps calls as Objects and the names of classes and functions as
// Globals, in place of refusing them. collections.OrderedDict and defaultdict become dicts. Keys of dicts
// that are no strings become strings, integers in decimal. Integers of more than 64 bits become None.
func ReadObjects(r *bounded.Reader) (*Data, Value, error) {
	p := newPickle(r)
	p.keeps = true
	return readPickle(p)
}

// Global returns the name of a class or function, "module.name"; "" of other values.
func (d *Data) Global(v Value) string {
	if v.kind != Global {
		return ""
	}
	return *d.strings.at(v.n)
}

// Object returns an object's parts.
func (d *Data) Object(v Value) (Object, bool) {
	if v.kind != Called {
		return Object{}, false
	}
	return *d.objects.at(v.n), true
}

// ID distinguishes lists, dicts and objects of a Data: of two equal IDs the values are the same.
func (v Value) ID() (id [2]int64, ok bool) {
	return [2]int64{int64(v.kind), v.n}, v.kind == List || v.kind == Dict || v.kind == Called
}

// The opcodes that name or call code.
const (
	opGlobal      = 'c'
	opStackGlobal = 0x93
	opReduce      = 'R'
	opNewObj      = 0x81
	opNewObjEx    = 0x92
	opBuild       = 'b'
	opBinPersID   = 'Q'
	opPersID      = 'P'
	opInst        = 'i'
	opObj         = 'o'
)

const objectBytes = 64

// object keeps what an opcode of running would do. ok is false for those that need a table which the file
// does not have.
func (p *pickle) object(code byte) (ok bool, err error) {
	switch code {
	case opGlobal, opStackGlobal:
		name, err := p.globalName(code)
		if err != nil {
			return true, err
		}
		return true, p.orPush(p.global(name))
	case opReduce, opNewObj:
		v, err := p.take(2)
		if err != nil {
			return true, err
		}
		return true, p.orPush(p.call(Object{Callee: v[0], Args: v[1]}))
	case opNewObjEx:
		v, err := p.take(3)
		if err != nil {
			return true, err
		}
		return true, p.orPush(p.call(Object{Callee: v[0], Args: v[1], Items: v[2]}))
	case opBuild:
		return true, p.buildState()
	case opBinPersID:
		v, err := p.take(1)
		if err != nil {
			return true, err
		}
		return true, p.orPush(p.call(Object{Args: v[0]}))
	case opPersID:
		line, err := p.readLine()
		if err != nil {
			return true, err
		}
		id, err := p.text(line)
		if err != nil {
			return true, err
		}
		return true, p.orPush(p.call(Object{Args: id}))
	case opInst, opObj:
		return true, p.instance(code)
	}
	return false, nil
}

// globalName reads the name of a class or function.
func (p *pickle) globalName(code byte) ([]byte, error) {
	if code == opStackGlobal {
		v, err := p.take(2)
		if err != nil {
			return nil, err
		}
		if v[0].kind != String || v[1].kind != String {
			return nil, fmt.Errorf("a global of %v and %v, want two strings", v[0].kind, v[1].kind)
		}
		return []byte(p.Str(v[0]) + "." + p.Str(v[1])), nil
	}
	line, err := p.readLine()
	if err != nil {
		return nil, err
	}
	name := append(bytes.Clone(line), '.')
	line, err = p.readLine()
	return append(name, line...), err
}

func (p *pickle) global(name []byte) (Value, error) {
	if len(name) > bounded.MaxName {
		return Value{}, fmt.Errorf("a global whose name has %d bytes, want at most %d", len(name), bounded.MaxName)
	}
	v, err := p.text(name)
	return Value{Global, v.n}, err
}

// call keeps an object, or makes the dict that it would be.
func (p *pickle) call(o Object) (Value, error) {
	switch p.Global(o.Callee) {
	case "collections.OrderedDict", "collections.defaultdict":
		v, err := p.newDict()
		if err != nil {
			return v, err
		}
		for _, arg := range p.List(o.Args) {
			// As Python 2 writes them. Many calls may have the same ones: each counts every time.
			if err := p.room.Use(valueBytes * int64(1+len(p.List(arg)))); err != nil {
				return v, err
			}
			for _, pair := range p.List(arg) {
				if kv := p.List(pair); len(kv) == 2 {
					if err := p.setPairs(v, []Value{kv[0], kv[1]}); err != nil {
						return v, err
					}
				}
			}
		}
		return v, nil
	}
	v := Value{Called, p.objects.add()}
	*p.objects.at(v.n) = o
	return v, p.room.Use(objectBytes)
}

// buildState gives the object below the stack's top its state. That of a dict is attributes of the dict.
func (p *pickle) buildState() error {
	state, err := p.take(1)
	if err != nil {
		return err
	}
	given := state[0]
	into, err := p.top()
	if err != nil {
		return err
	}
	switch into.kind {
	case Called:
		p.objects.at(into.n).State = given
	case Dict:
	default:
		return fmt.Errorf("an opcode finds %v, want an object", into.kind)
	}
	return nil
}

// instance makes an object of a class and the values above the last mark.
func (p *pickle) instance(code byte) error {
	var o Object
	var name []byte
	if code == opInst {
		var err error
		if name, err = p.globalName(opGlobal); err != nil {
			return err
		}
	}
	values, err := p.popMark()
	if err != nil {
		return err
	}
	if code == opInst {
		o.Callee, err = p.global(name)
	} else if len(values) == 0 {
		err = errUnderflow
	} else {
		o.Callee, values = values[0], values[1:]
	}
	if err == nil {
		if o.Args, err = p.newList(); err == nil {
			err = p.extend(o.Args, values)
		}
	}
	if err != nil {
		return err
	}
	return p.orPush(p.call(o))
}

// items returns the list or dict that an object's items are kept in.
func (p *pickle) items(object Value, want Kind) (Value, error) {
	o := p.objects.at(object.n)
	if o.Items.kind == None {
		var err error
		if want == Dict {
			o.Items, err = p.newDict()
		} else {
			o.Items, err = p.newList()
		}
		if err != nil {
			return Value{}, err
		}
	}
	return o.Items, nil
}

// named makes strings of the keys that are none.
func (p *pickle) named(pairs []Value) error {
	for i := 0; i < len(pairs); i += 2 {
		text := ""
		switch k := pairs[i]; k.kind {
		case String:
			continue
		case Int:
			text = strconv.FormatInt(k.n, 10)
		default:
			p.unnamed++
			text = "key " + strconv.Itoa(p.unnamed)
		}
		v, err := p.text([]byte(text))
		if err != nil {
			return err
		}
		pairs[i] = v
	}
	return nil
}
