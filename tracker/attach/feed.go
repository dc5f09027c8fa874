package attach

import "errors"

// feed is where events come from: probes in the kernel, or a library in the programs.
type feed interface {
	watch(pid int) error                // and what it will start
	forget(pid int)                     // but not what it has started
	library(path, library string) error // probes a file
	next(e *event) error                // waits for an event; errFlushed, os.ErrClosed
	flush() error                       // has next return errFlushed when it has all that is there now
	lost() (count, since uint64)        // events, and when the first was
	environ(env []string) []string      // for what is to be watched
	detach()                            // no event is to come any more
	interrupt()                         // has next return os.ErrClosed
	close()
}

var errFlushed = errors.New("all events that there were have been read")
