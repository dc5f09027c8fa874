package otel

import (
	"errors"
	"maps"

	"go.opentelemetry.io/otel/sdk/resource"

	"github.com/gpumemtrack/gpumemtrack/tracker/export/otlp"
)

// PushProfiles pushes the source's memory by call stack as OTLP profiles, with the SDK's resource, until Stop of the Pusher.
// OpenTelemetry's SDK has no signal of profiles yet: package tracker/export/otlp says what is pushed and how, and that cfg may
// be zero where OTEL_EXPORTER_OTLP_ENDPOINT is set. Attributes in cfg.Resource win over those of the resource, which may be
// nil. Metrics are not pushed: Observe gives them to the SDK. The error says which setting is wrong.
func PushProfiles(cfg otlp.Config, of *resource.Resource, source Source) (*otlp.Pusher, error) {
	if source == nil {
		return nil, errors.New("otel.PushProfiles: the source is nil")
	}
	all := make(map[string]any)
	for _, a := range of.Attributes() {
		all[string(a.Key)] = a.Value.AsInterface()
	}
	maps.Copy(all, cfg.Resource)
	cfg.Resource, cfg.NoMetrics = all, true
	return otlp.Start(cfg, source)
}
