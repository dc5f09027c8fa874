package tracker

import (
	"io"

	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Names for the types of package snapshot that programs use most.
type (
	// Kind is the purpose of a buffer, such as Parameter. See [snapshot.Kind].
	Kind = snapshot.Kind
	// Mark is what one Track found. See [snapshot.Mark].
	Mark = snapshot.Mark
	// Snapshot is a copy of the ledger at one instant. See [snapshot.Snapshot].
	Snapshot = snapshot.Snapshot
	// History is the latest events. See [snapshot.History].
	History = snapshot.History
	// Profile adds up sections by path. See [snapshot.Profile].
	Profile = snapshot.Profile
	// Origin describes a process. See [snapshot.Origin].
	Origin = snapshot.Origin
	// Layer describes the work of a section. See [snapshot.Layer].
	Layer = snapshot.Layer
	// Estimate is what a section was expected to take. See [snapshot.Estimate].
	Estimate = snapshot.Estimate
	// Estimates are estimates by path. See [snapshot.Estimates].
	Estimates = snapshot.Estimates
	// LeakOption selects leaks. See [snapshot.LeakOption].
	LeakOption = snapshot.LeakOption
)

// The kinds. See [snapshot.Kind].
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

// OnlyLost keeps only lost buffers: see LostPolicy.
func OnlyLost() LeakOption { return snapshot.OnlyLost() }

// IgnoreKinds leaves out buffers of these kinds.
func IgnoreKinds(kinds ...Kind) LeakOption { return snapshot.IgnoreKinds(kinds...) }

// IgnoreFunction leaves out what was allocated by, or anywhere below, a function:
// "example.com/model.Load", "example.com/model.(*Net).Forward".
func IgnoreFunction(name string) LeakOption { return snapshot.IgnoreFunction(name) }

// IgnoreSection leaves out what was allocated in the section with that path, or in a part of
// it.
func IgnoreSection(path string) LeakOption { return snapshot.IgnoreSection(path) }

// ReadSnapshot reads a snapshot that was written as JSON: see [snapshot.Read]. The errors are
// the same.
func ReadSnapshot(r io.Reader) (*Snapshot, error) { return snapshot.Read(r) }
