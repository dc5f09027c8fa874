package otlp

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	commonpb "go.opentelemetry.io/proto/slim/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/slim/otlp/metrics/v1"
	resourcepb "go.opentelemetry.io/proto/slim/otlp/resource/v1"

	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// SchemaURL names the version of OpenTelemetry's conventions that names and units follow.
const SchemaURL = "https://opentelemetry.io/schemas/1.43.0"

// ScopeName is the instrumentation scope of all data.
const ScopeName = "github.com/gpumemtrack/gpumemtrack"

// Kind says what a metric's values mean.
type Kind uint8

const (
	Gauge   Kind = iota // cannot be added up
	Level               // can be added up over devices and processes: an up-down counter
	Counter             // only rises
)

// Metric is an instrument.
type Metric struct {
	Name, Unit, Description string
	Kind                    Kind
}

// Point is a value of a metric: an int64 or a float64.
type Point struct {
	Metric     *Metric
	Attributes []*commonpb.KeyValue
	Value      any
}

// Measured are the values of one resource at one instant.
type Measured struct {
	Resource    *resourcepb.Resource
	Start, Time time.Time // counters count from Start
	Points      []Point
}

// EncodeMetrics returns the values as payloads of at most about maxBytes each, with their numbers of points.
func EncodeMetrics(all []Measured, maxBytes int, yield func(payload []byte, points int)) {
	data, size, points := new(metricspb.MetricsData), 0, 0
	flush := func() {
		if points > 0 {
			payload, _ := proto.Marshal(data) // its strings are valid UTF-8
			yield(payload, points)
		}
		data, size, points = new(metricspb.MetricsData), 0, 0
	}
	for i := range all {
		one := all[i].message()
		n := proto.Size(one)
		if size > 0 && size+n > maxBytes {
			flush()
		}
		data.ResourceMetrics = append(data.ResourceMetrics, one)
		size, points = size+n, points+len(all[i].Points)
	}
	flush()
}

func (m *Measured) message() *metricspb.ResourceMetrics {
	byMetric := make(map[*Metric]*metricspb.Metric)
	scope := &metricspb.ScopeMetrics{Scope: Scope(), SchemaUrl: SchemaURL}
	for _, p := range m.Points {
		metric := byMetric[p.Metric]
		if metric == nil {
			metric = p.Metric.message()
			byMetric[p.Metric] = metric
			scope.Metrics = append(scope.Metrics, metric)
		}
		point := &metricspb.NumberDataPoint{Attributes: p.Attributes, TimeUnixNano: uint64(m.Time.UnixNano())}
		switch v := p.Value.(type) {
		case int64:
			point.Value = &metricspb.NumberDataPoint_AsInt{AsInt: v}
		case float64:
			point.Value = &metricspb.NumberDataPoint_AsDouble{AsDouble: v}
		}
		switch data := metric.Data.(type) {
		case *metricspb.Metric_Gauge:
			data.Gauge.DataPoints = append(data.Gauge.DataPoints, point)
		case *metricspb.Metric_Sum:
			point.StartTimeUnixNano = uint64(cmp.Or(m.Start, m.Time).UnixNano())
			data.Sum.DataPoints = append(data.Sum.DataPoints, point)
		}
	}
	return &metricspb.ResourceMetrics{Resource: m.Resource, ScopeMetrics: []*metricspb.ScopeMetrics{scope}, SchemaUrl: SchemaURL}
}

func (m *Metric) message() *metricspb.Metric {
	out := &metricspb.Metric{Name: m.Name, Unit: m.Unit, Description: m.Description}
	if m.Kind == Gauge {
		out.Data = &metricspb.Metric_Gauge{Gauge: new(metricspb.Gauge)}
		return out
	}
	out.Data = &metricspb.Metric_Sum{Sum: &metricspb.Sum{
		AggregationTemporality: metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE, IsMonotonic: m.Kind == Counter,
	}}
	return out
}

// Scope returns the instrumentation scope.
func Scope() *commonpb.InstrumentationScope {
	return &commonpb.InstrumentationScope{Name: ScopeName}
}

// String returns an attribute whose value is a text from anywhere.
func String(key, value string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: text.UTF8(key), Value: Value(value)}
}

// Int returns an attribute whose value is a number.
func Int(key string, value int64) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: Value(value)}
}

// Value returns a string, bool, int, int64, float64 or []string as an attribute's value, and anything else as it prints.
func Value(v any) *commonpb.AnyValue {
	switch v := v.(type) {
	case string:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: text.UTF8(v)}}
	case bool:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_BoolValue{BoolValue: v}}
	case int:
		return Value(int64(v))
	case int64:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: v}}
	case float64:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_DoubleValue{DoubleValue: v}}
	case []string:
		list := new(commonpb.ArrayValue)
		for _, one := range v {
			list.Values = append(list.Values, Value(one))
		}
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{ArrayValue: list}}
	}
	return Value(fmt.Sprint(v))
}

// Resource returns a resource with these attributes, ordered by key.
func Resource(attributes map[string]any) *resourcepb.Resource {
	r := new(resourcepb.Resource)
	for _, key := range slices.Sorted(maps.Keys(attributes)) {
		r.Attributes = append(r.Attributes, &commonpb.KeyValue{Key: text.UTF8(key), Value: Value(attributes[key])})
	}
	return r
}
