package cuda_test

import (
	"fmt"
	"io"
	"log"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// A tracker over a stream-ordered pool. It has no cache, because the pool is one. The example needs a GPU: TestExamples runs it, on an
// emulated driver if there is none.
func ExampleDevice_NewPool() {
	dev, err := cuda.Open(0)
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	pool, err := dev.NewPool(cuda.PoolConfig{ReleaseThreshold: alloc.GiB})
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	tr, err := tracker.New(tracker.Config{Device: pool, NoCache: true, Report: io.Discard})
	if err != nil {
		log.Fatal(err)
	}
	defer tr.Close()
	b, err := tr.Alloc(alloc.Shape{1024, 1024}, alloc.Float32, tracker.Activation)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(b.Allocation().Memory, b.Bytes()) // pool 4.0 MiB
	if err := b.Free(); err != nil {
		log.Fatal(err)
	}
}

// Pinned memory in the ledger of the GPU's tracker, which counts it apart. The example needs a GPU: TestExamples runs it.
func ExampleDevice_Pinned() {
	dev, err := cuda.Open(0)
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	tr, err := tracker.New(tracker.Config{Device: dev, Report: io.Discard})
	if err != nil {
		log.Fatal(err)
	}
	defer tr.Close()
	pinned := dev.Pinned(cuda.PinnedConfig{})
	p, err := pinned.Alloc(4 * alloc.MiB)
	if err != nil {
		log.Fatal(err)
	}
	if err := tr.Register(p, pinned.Memory(), alloc.Shape{1 << 20}, alloc.Float32, tracker.Input); err != nil {
		log.Fatal(err)
	}
	levels := tr.LightSnapshot().Levels
	fmt.Println(levels.Live.Bytes, levels.Memory[alloc.PinnedMemory].Bytes) // 0 B 4.0 MiB
	if _, err := tr.Unregister(p); err != nil {
		log.Fatal(err)
	}
	if err := pinned.Free(p); err != nil {
		log.Fatal(err)
	}
}

// Managed memory, which may be larger than the device's. The example needs a GPU: TestExamples runs it.
func ExampleDevice_Managed() {
	dev, err := cuda.Open(0)
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	tr, err := tracker.New(tracker.Config{Device: dev.Managed(), NoCache: true, Report: io.Discard})
	if err != nil {
		log.Fatal(err)
	}
	defer tr.Close()
	b, err := tr.AllocBytes(64*alloc.MiB, tracker.Parameter)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(b.Allocation().Memory, b.Bytes()) // managed 64.0 MiB
	if err := b.Free(); err != nil {
		log.Fatal(err)
	}
}
