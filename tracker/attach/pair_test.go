package attach

import (
	"io/fs"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/ledger"
)

func TestParsePair(t *testing.T) {
	for text, want := range map[string]event.Pair{
		"libpool.so:take,give":                                        {Library: "libpool.so", Alloc: "take", Free: "give", Size: 1, Address: 1},
		"/a b/libpool.so:take(),x":                                    {Library: "/a b/libpool.so", Alloc: "take", Free: "x", Size: 1, Address: 1},
		"libpool.so:pool_alloc(size=2,out=3),pool_free(address=2)":    {Library: "libpool.so", Alloc: "pool_alloc", Free: "pool_free", Size: 2, Out: 3, Address: 2},
		"libarena.so:arena::Pool::take(size=2),arena::~Pool::give":    {Library: "libarena.so", Alloc: "arena::Pool::take", Free: "arena::~Pool::give", Size: 2, Address: 1},
		"libc10.so:A::malloc(out=2, size=4, void),A::free(address=2)": {Library: "libc10.so", Alloc: "A::malloc", Free: "A::free", Size: 4, Out: 2, Void: true, Address: 2},
		"libc10.so:c10::report(size=2,address=1,signed)":              {Library: "libc10.so", Alloc: "c10::report", Size: 2, Address: 1, Signed: true},
	} {
		got, err := event.ParsePair(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, got)
	}
	for _, text := range []string{
		"", "libpool.so", "libpool.so:take", ":take,give", "libpool.so:take,give,more", "libpool.so:take(size=0),give",
		"libpool.so:take(size=7),give", "libpool.so:take(address=1),give", "libpool.so:take,give(out=2)", "libpool.so:take(size=x),give",
		"libpool.so:take(size),give", "libpool.so:take,take", "libpool.so:take(out=1),give", "libpool.so:take(size=2,give",
		"libpool.so:take(void),give", "libpool.so:take,give(void)", "libpool.so:take(signed)", "libpool.so:take(size=2,address=1)",
		"libpool.so:take(size=2,address=1,signed),give", "libpool.so:take(size=2,out=1,signed)",
	} {
		_, err := New(Config{Functions: []string{text}})
		assert.ErrorIs(t, err, fs.ErrInvalid, text)
	}
}

// TestLibraryFoundLate: a library of the host's memory has no GPU, though calls of it were missed.
func TestLibraryFoundLate(t *testing.T) {
	for _, test := range []struct {
		late *ledger.Prior
		want string
	}{
		{nil, "Memory of a library"},
		{&ledger.Prior{}, "Memory of a library"},                               // the library was found late, libcuda was not
		{&ledger.Prior{UnseenCalls: true, Known: true}, "Memory of a library"}, // the driver knows of no memory
		{&ledger.Prior{UnseenCalls: true}, "GPU of unknown number"},
	} {
		s := newScript(t)
		s.w.functions = event.Watched([]event.Pair{{Library: "libarena.so", Alloc: "take", Free: "give", Size: 1, Address: 1}})
		s.w.prior[nobodysPID] = test.late
		s.call(event.AtReturn, "take", 0x300, 0, 30)
		device, _ := s.w.Sources()[0].Device()
		assert.Equal(t, test.want, device, "%+v", test.late)
	}
	s := newScript(t)
	pair, err := event.ParsePair("pytorch-cpu")
	require.NoError(t, err)
	s.w.functions = event.Watched([]event.Pair{pair})
	s.w.prior[nobodysPID] = &ledger.Prior{UnseenCalls: true}
	s.call(event.AtReturn, "cuCtxCreate_v2", 0, 0xc1, 0xdead, 0, 1)
	s.call(event.AtReturn, "c10::alloc_cpu", 0x300, 0, 30)
	device, _ := s.w.Sources()[0].Device()
	assert.Equal(t, "Memory of a library", device, "PyTorch's tensors on the CPU, in a process with a GPU")
}

func TestFunctionsOfALibrary(t *testing.T) {
	s := newScript(t)
	s.w.functions = event.Watched([]event.Pair{
		{Library: "libpool.so", Alloc: "pool_alloc", Free: "pool_free", Size: 2, Out: 3, Address: 2},
		{Library: "libarena.so", Alloc: "take", Free: "give", Size: 1, Address: 1},
		{Library: "libc10.so", Alloc: "malloc", Free: "free", Size: 4, Out: 2, Void: true, Address: 2},
		{Library: "libc10.so", Alloc: "report", Size: 2, Address: 1, Signed: true},
	})
	s.call(event.AtReturn, "cuCtxCreate_v2", 0, 0xc1, 0xdead, 0, 1)
	s.call(event.AtReturn, "pool_alloc", 0, 0x100, 0xdead, 10, 0xbeef)
	s.call(event.AtReturn, "pool_alloc", 2, 0x200, 0xdead, 10, 0xbeef) // it failed
	s.call(event.AtReturn, "take", 0x300, 0, 30)
	s.call(event.AtReturn, "take", 0, 0, 40) // it failed
	assert.Equal(t, live{0x100: 10, 0x300: 30}, s.live())
	_, ordinal := s.w.Sources()[0].Device()
	assert.Equal(t, 1, ordinal)
	s.take("pool_free", 0xdead, 0x100)
	s.take("give", 0x300)
	s.take("give", 0)
	s.call(event.AtReturn, "malloc", 7, 0x400, 0xdead, 0xbeef, 0, 50) // 7 is what happened to be in the register
	s.call(event.AtReturn, "malloc", 0, 0, 0xdead, 0xbeef, 0, 60)     // it failed
	assert.Equal(t, live{0x400: 50}, s.live())
	s.take("free", 0xdead, 0x400)
	assert.Empty(t, s.live())
	const taken = ^uint64(70) + 1                              // -70
	s.call(event.AtReturn, "report", 7, 0, 0x500, 70, 0, 0)    // what it returns says nothing
	s.call(event.AtReturn, "report", 0, 0, 0x600, 80, 0, 0)    //
	s.call(event.AtReturn, "report", 0, 0, 0x700, 0, 0, 0)     // no memory
	s.call(event.AtReturn, "report", 0, 0, 0, 80, 0, 0)        // no address
	s.call(event.AtReturn, "report", 3, 0, 0x500, taken, 0, 0) // taken back
	assert.Equal(t, live{0x600: 80}, s.live())
	s.call(event.AtReturn, "report", 0, 0, 0x600, ^uint64(80)+1, 0, 0)
	assert.Empty(t, s.live())
	assert.Empty(t, s.w.Warnings())
}
