package tracker

import (
	"io"

	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// The values that a tracker returns are those of package snapshot. These names
// stand for the ones that a program writes.
type (
	Kind       = snapshot.Kind
	Mark       = snapshot.Mark
	Snapshot   = snapshot.Snapshot
	History    = snapshot.History
	Profile    = snapshot.Profile
	Origin     = snapshot.Origin
	Layer      = snapshot.Layer
	Estimate   = snapshot.Estimate
	Estimates  = snapshot.Estimates
	LeakOption = snapshot.LeakOption
)

// The kinds; see [snapshot.Kind].
const (
	Unspecified    = snapshot.Unspecified
	Parameter      = snapshot.Parameter
	Gradient       = snapshot.Gradient
	OptimizerState = snapshot.OptimizerState
	Activation     = snapshot.Activation
	Input          = snapshot.Input
	Temporary      = snapshot.Temporary
)

// NewKind returns a program's own kind, for a package variable: see [snapshot.NewKind].
func NewKind(name string) Kind { return snapshot.NewKind(name) }

// Since leaves out what was allocated before base: see [snapshot.Since].
func Since(base *Snapshot) LeakOption { return snapshot.Since(base) }

// OnlyLost leaves out what the program can still free: see LostPolicy.
func OnlyLost() LeakOption { return snapshot.OnlyLost() }

// IgnoreKinds leaves out buffers of these kinds.
func IgnoreKinds(kinds ...Kind) LeakOption { return snapshot.IgnoreKinds(kinds...) }

// IgnoreFunction leaves out what was allocated by, or anywhere below, a function:
// "example.com/model.Load", "example.com/model.(*Net).Forward".
func IgnoreFunction(name string) LeakOption { return snapshot.IgnoreFunction(name) }

// IgnoreSection leaves out what was allocated in the section of that path, or in a
// part of it.
func IgnoreSection(path string) LeakOption { return snapshot.IgnoreSection(path) }

// ReadSnapshot reads a snapshot that was written as JSON: see [snapshot.Read].
func ReadSnapshot(r io.Reader) (*Snapshot, error) { return snapshot.Read(r) }
