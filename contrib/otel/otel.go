package otel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Source is observed for its memory; a *tracker.MemTracker is one. Its method may
// be called from any goroutine.
type Source interface {
	LightSnapshot() *snapshot.Snapshot
}

// Observe makes the meter observe the source at each collection, until the Registration is
// unregistered. The attributes are added to the package's own. The error is the meter's, if it
// cannot make an instrument, or says that the meter or the source is nil.
func Observe(meter metric.Meter, source Source, attributes ...attribute.KeyValue) (metric.Registration, error) {
	if meter == nil || source == nil {
		return nil, errors.New("otel.Observe: the meter or the source is nil")
	}
	i, err := newInstruments(meter)
	if err != nil {
		return nil, fmt.Errorf("observe a tracker: %w", err)
	}
	registration, err := meter.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		s := source.LightSnapshot()
		i.observe(&observer{to, append(slices.Clip(attributes), identity(s)...)}, s)
		return nil
	}, i.all...)
	if err != nil {
		return nil, fmt.Errorf("observe a tracker: %w", err)
	}
	return registration, nil
}

// nvidia is the form of NVIDIA's UUIDs.
var nvidia = regexp.MustCompile(`^(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// identity returns the attributes of the device that the conventions for hardware name. Without a UUID, the
// ordinal is all that tells the process's devices apart.
func identity(s *snapshot.Snapshot) []attribute.KeyValue {
	device := []attribute.KeyValue{
		attribute.String("hw.id", valid(cmp.Or(s.UUID, strconv.Itoa(s.Ordinal)))), attribute.String("hw.type", "gpu"),
		attribute.String("hw.name", valid(s.Device)), attribute.String("hw.model", valid(s.Device)),
	}
	if nvidia.MatchString(s.UUID) {
		device = append(device, attribute.String("hw.vendor", "NVIDIA"))
	}
	return device
}

// valid returns a text as OpenTelemetry takes it: valid UTF-8.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }

// observer adds the device's attributes.
type observer struct {
	to     metric.Observer
	device []attribute.KeyValue
}

func (o *observer) set(i metric.Int64Observable, value int64, more ...attribute.KeyValue) {
	o.to.ObserveInt64(i, value, metric.WithAttributes(append(slices.Clip(o.device), more...)...))
}

func (i *instruments) observe(to *observer, s *snapshot.Snapshot) {
	i.observeKinds(to, s)
	for _, m := range alloc.Memories() {
		if live := s.Memory[m]; m.OnHost() && !live.IsZero() {
			to.set(i.host, int64(live.Bytes), attribute.String("gpumem.memory", m.String()))
		}
	}
	to.set(i.peak, int64(s.Peak.Bytes))
	to.set(i.allocated, int64(s.Total.Bytes))
	to.set(i.allocations, s.Total.Count)
	to.set(i.registered, int64(s.Registered))
	i.observeCache(to, s)
	if s.DriverTotal >= 0 {
		to.set(i.limit, int64(s.DriverTotal))
	}
	if s.DriverUsed >= 0 {
		to.set(i.usage, int64(s.DriverUsed))
	}
	if untracked := s.Untracked(); untracked >= 0 {
		to.set(i.untracked, int64(untracked))
	}
}

// observeKinds observes the well-known kinds always, and others that have live buffers.
func (i *instruments) observeKinds(to *observer, s *snapshot.Snapshot) {
	sums := make(map[mem.Kind]mem.Tally)
	for _, kind := range mem.Kinds() {
		sums[kind] = mem.Tally{}
	}
	for _, g := range s.Sub(nil) {
		if g.Memory.OnHost() {
			continue
		}
		sums[g.Kind] = sums[g.Kind].Add(g.Tally)
	}
	for kind, sum := range sums {
		name := attribute.String("gpumem.kind", valid(kind.String()))
		to.set(i.live, int64(sum.Bytes), name)
		to.set(i.buffers, sum.Count, name)
	}
}

func (i *instruments) observeCache(to *observer, s *snapshot.Snapshot) {
	state := func(name string) attribute.KeyValue { return attribute.String("gpumem.state", name) }
	if s.Cache == nil {
		to.set(i.reserved, int64(s.Reserved), state("allocated"))
		return
	}
	to.set(i.reserved, int64(s.Cache.Allocated.Bytes.Current), state("allocated"))
	to.set(i.reserved, int64(s.Cache.Inactive.Bytes.Current), state("inactive"))
	if s.Cache.Pending.Bytes.Total > 0 { // a program with several streams
		to.set(i.reserved, int64(s.Cache.Pending.Bytes.Current), state("pending"))
	}
	to.set(i.largest, int64(s.Cache.LargestInactive))
	to.set(i.retries, int64(s.Cache.Retries))
	to.set(i.refusals, int64(s.Cache.OOMs))
}
