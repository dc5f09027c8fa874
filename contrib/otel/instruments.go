package otel

import (
	"errors"

	"go.opentelemetry.io/otel/metric"
)

// instruments are the instruments that the package comment lists.
type instruments struct {
	limit, usage                             metric.Int64Observable
	live, peak, host                         metric.Int64Observable
	reserved, registered, untracked, largest metric.Int64Observable
	allocated, allocations, buffers          metric.Int64Observable
	retries, refusals                        metric.Int64Observable

	all []metric.Observable
}

const bytes = "By"

func newInstruments(meter metric.Meter) (*instruments, error) {
	m := maker{meter: meter}
	i := &instruments{
		limit:       m.level("hw.gpu.memory.limit", bytes, "Size of the device's memory."),
		usage:       m.level("hw.gpu.memory.usage", bytes, "Device memory in use by all processes."),
		live:        m.level("gpumem.memory.live", bytes, "Requested bytes of the live buffers, by what they are for."),
		peak:        m.gauge("gpumem.memory.live.peak", bytes, "Highest sum of requested bytes of live buffers."),
		host:        m.level("gpumem.host.live", bytes, "Requested bytes of the live buffers in pinned and mapped host memory, which no other instrument counts."),
		reserved:    m.level("gpumem.memory.reserved", bytes, "Memory that the tracker's device holds from the driver."),
		registered:  m.level("gpumem.memory.registered", bytes, "Memory of other code that is registered with the tracker."),
		untracked:   m.level("gpumem.memory.untracked", bytes, "Device memory in use that is neither reserved nor registered."),
		allocated:   m.counter("gpumem.memory.allocated", bytes, "Requested bytes of all buffers ever allocated."),
		allocations: m.counter("gpumem.memory.allocations", "{allocation}", "Buffers ever allocated."),
		buffers:     m.level("gpumem.buffer.count", "{buffer}", "Number of live buffers, by what they are for."),
		largest:     m.gauge("gpumem.cache.block.largest", bytes, "Largest inactive block."),
		retries:     m.counter("gpumem.cache.retries", "{retry}", "Times that the cache was emptied to serve a request."),
		refusals:    m.counter("gpumem.cache.refusals", "{request}", "Requests refused for lack of memory."),
	}
	i.all = m.made
	return i, errors.Join(m.errs...)
}

// maker makes instruments. It keeps the errors, to be asked for once.
type maker struct {
	meter metric.Meter
	made  []metric.Observable
	errs  []error
}

func (m *maker) keep(i metric.Int64Observable, err error) metric.Int64Observable {
	m.made, m.errs = append(m.made, i), append(m.errs, err)
	return i
}

// level makes an instrument whose values can be added up over devices and processes.
func (m *maker) level(name, unit, description string) metric.Int64Observable {
	return m.keep(m.meter.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(description)))
}

// gauge makes an instrument whose values cannot be added up.
func (m *maker) gauge(name, unit, description string) metric.Int64Observable {
	return m.keep(m.meter.Int64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(description)))
}

// counter makes an instrument whose values only rise.
func (m *maker) counter(name, unit, description string) metric.Int64Observable {
	return m.keep(m.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(description)))
}
