package tracker

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// RegisterOption describes the memory that Register adds.
type RegisterOption func(*registration)

// registration is what the options of a Register say.
type registration struct {
	memory alloc.Memory
	label  string
}

func newRegistration(opts []RegisterOption) (registration, error) {
	r := registration{memory: alloc.DeviceMemory}
	for _, opt := range opts {
		opt(&r)
	}
	if !r.memory.Valid() {
		return r, fmt.Errorf("%v: there is no such kind of memory", r.memory)
	}
	return r, nil
}

// InMemory says what kind of memory it is. Without it, it is alloc.DeviceMemory.
func InMemory(m alloc.Memory) RegisterOption {
	return func(r *registration) { r.memory = m }
}

// Labelled names the memory, as Buffer.SetLabel does.
func Labelled(label string) RegisterOption {
	return func(r *registration) { r.label = label }
}
