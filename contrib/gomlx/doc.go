// Package memtrack enters the buffers of a GoMLX program in a tracker's ledger: on XLA (NVIDIA's GPUs and others,
// by PJRT's plugins), and on GoMLX's backend in plain Go.
//
//	backend := memtrack.Wrap(compute.MustNew(), tr)
//	trainer := train.NewTrainer(backend, ...)
//
// The package is a module of its own, so that only programs that use GoMLX depend on it. Its
// import path ends in gomlx:
//
//	import memtrack "github.com/gpumemtrack/gpumemtrack/contrib/gomlx"
//
// # What is entered
//
// Each buffer, with its shape, type and call stack; the call site is the line outside of GoMLX.
// What the program transfers is of kind Input, and a result of a computation is an Activation. A
// model's variable has its path as label, and a kind by it: OptimizerState, Gradient (accumulated
// ones), Parameter, and Unspecified for the state of metrics, counters and random numbers. A result
// becomes known as the new value of a variable when a later step reads it as that variable. With
// Step and Loop, it is known right after the step.
//
// A buffer leaves the ledger when it is finalized, when it is donated to a computation that succeeds, and when Go's
// collector takes it. If a Finalize fails, it stays.
//
// The addresses are made up, as PJRT does not tell them: no two buffers ever have the same.
//
// # What is not
//
// What a computation takes while it runs and what a plugin holds in reserve are in no buffer, and
// go-xla does not tell them. On a GPU they are part of the report's untracked memory.
//
// # Out of memory
//
// If the backend says that memory is missing, the error is a *tracker.OutOfMemoryError: it lists the lines
// that hold most, and says what would help. The backend's own words follow.
//
// # Concurrency
//
// Everything may be called from any goroutine, if the backend allows that.
package memtrack
