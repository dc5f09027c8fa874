package callstack_test

import (
	"reflect"
	"runtime"

	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
)

func inlined1(look func()) { inlined2(look) }
func inlined2(look func()) { inlined3(look) }
func inlined3(look func()) { look() }

type caller struct{ look func() }

//go:noinline
func (c caller) Call() { c.look() }

func (c caller) call() { c.look() }

type (
	embedded  struct{ caller }
	embedding struct{ embedded }
)

//go:noinline
func callInterface(c interface{ Call() }) { c.Call() }

// nest reaches itself through an interface, which the compiler does with a wrapper a step.
type nest struct {
	rest int
	look func()
}

//go:noinline
func (n nest) Call() {
	if n.rest == 0 {
		n.look()
		return
	}
	callInterface(&nest{n.rest - 1, n.look})
}

// A walk leaves room for this many wrappers, which are no logical frames; for too many it does not.
func manyWrappers(look func())    { recurse(20, func() { callInterface(&nest{9, look}) }) }
func tooManyWrappers(look func()) { recurse(20, func() { callInterface(&nest{16, look}) }) }

//go:noinline
func generic[T any](look func()) {
	var zero T
	defer runtime.KeepAlive(zero)
	look()
}

func look2(look func()) func() { return func() { look() } }

func ranged(look func()) {
	for range func(yield func(int) bool) { yield(0) } {
		look()
	}
}

func reflectFunction(look func()) {
	f := reflect.MakeFunc(reflect.TypeFor[func(int) int](), func(in []reflect.Value) []reflect.Value {
		look()
		return in
	})
	f.Interface().(func(int) int)(1)
}

func panicking(look func()) {
	defer func() { _ = recover() }()
	defer look()
	panic("on purpose")
}

func faulting(look, fault func()) {
	defer func() { _ = recover() }()
	defer look()
	fault()
}

// dereference has no frame.
//
//go:noinline
func dereference(p *int) int { return *p }

//go:noinline
func divide(a, b int) int { return a / b }

func dereferenceOnLine(look func(), line int) {
	defer func() { _ = recover() }()
	defer look()
	if line == 0 {
		dereference(nil)
	} else {
		dereference(nil)
	}
}

func wait(start func(done func())) {
	finished := make(chan struct{})
	start(func() { close(finished) })
	<-finished
}

func lookAndDone(look, done func()) {
	look()
	done()
}

// collected attaches something to an object that dies, and waits until it calls done.
func collected(attach func(x *[64]byte, done func())) {
	wait(func(done func()) {
		attach(new([64]byte), done)
		runtime.GC()
	})
}

// faultBelow recurses to a dereference that has no frame, through one of two lines a level, as path says: its lowest bit is the
// outermost level's.
func faultBelow(look func(), levels int, path uint64) {
	defer func() { _ = recover() }()
	defer look()
	twoLines(levels, path, nil)
}

//go:noinline
func twoLines(levels int, path uint64, p *int) int {
	next := twoLines
	if levels == 1 {
		next = dereferenceToo
	}
	if path&1 == 0 {
		return next(levels-1, path>>1, p)
	}
	return next(levels-1, path>>1, p) + 1
}

//go:noinline
func dereferenceToo(_ int, _ uint64, p *int) int { return *p }

// captureInlined captures below its caller, into which it is inlined.
func captureInlined(stacks *callstack.Table) callstack.ID { return stacks.Capture(1) }
