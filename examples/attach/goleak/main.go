//go:build cuda && cgo

// Goleak keeps a cache of each session on a GPU, and forgets the sessions that end with an
// error: gpumemtrack attach finds the line. It calls the CUDA driver through cgo, as bindings of
// C libraries do:
//
//	go build -tags cuda ./examples/attach/goleak
package main

/*
#cgo LDFLAGS: -lcuda
#include <stddef.h>
int cuInit(unsigned flags);
int cuCtxCreate_v2(void **context, unsigned flags, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(unsigned long long *address, size_t bytes);
int cuMemFree_v2(unsigned long long address);
*/
import "C"

import (
	"errors"
	"fmt"
	"log"
	"os"
	"runtime"
	"strconv"
	"time"
	"unsafe"
)

// check makes an error of a driver's code.
func check(what string, code C.int) error {
	if code != 0 {
		return fmt.Errorf("%s: CUDA error %d", what, code)
	}
	return nil
}

// server has the driver's context.
type server struct{ context unsafe.Pointer }

func newServer() (*server, error) {
	s := new(server)
	if err := check("cuInit", C.cuInit(0)); err != nil {
		return nil, err
	}
	return s, check("cuCtxCreate", C.cuCtxCreate_v2(&s.context, 0, 0))
}

// cache is a session's memory on the GPU.
type cache struct{ at C.ulonglong }

func newCache(bytes int) (*cache, error) {
	c := new(cache)
	return c, check("cuMemAlloc", C.cuMemAlloc_v2(&c.at, C.size_t(bytes)))
}

func (c *cache) free() error { return check("cuMemFree", C.cuMemFree_v2(c.at)) }

var errHungUp = errors.New("the client hung up")

// answer runs one session.
func (s *server) answer(session int) error {
	if err := check("cuCtxSetCurrent", C.cuCtxSetCurrent(s.context)); err != nil {
		return err
	}
	c, err := newCache(2 << 20)
	if err != nil {
		return err
	}
	if session%10 == 9 {
		return errHungUp // without the cache's free
	}
	return c.free()
}

func main() {
	runtime.LockOSThread() // the context is current in this thread
	sessions := 100
	if len(os.Args) > 1 {
		sessions, _ = strconv.Atoi(os.Args[1])
	}
	s, err := newServer()
	if err != nil {
		log.Fatal(err)
	}
	for session := range sessions {
		time.Sleep(2 * time.Millisecond) // the client thinks
		if err := s.answer(session); err != nil && !errors.Is(err, errHungUp) {
			log.Fatal(err)
		}
	}
}
