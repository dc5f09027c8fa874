package otel_test

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
	metricspb "go.opentelemetry.io/proto/slim/otlp/metrics/v1"
	"google.golang.org/protobuf/proto"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/contrib/otel"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/otlp"
)

// server returns the URL of a server, and the latest request at a path.
func server(t *testing.T, path string) (url string, latest *string) {
	latest = new(string)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, err := gzip.NewReader(r.Body)
		if assert.NoError(t, err) && r.URL.Path == path {
			body, err := io.ReadAll(text)
			assert.NoError(t, err)
			*latest = string(body)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, latest
}

func TestPushedProfilesHaveTheResource(t *testing.T) {
	tr := newTracker(t, tracker.Config{})
	_, err := tr.AllocBytes(3*alloc.MiB, tracker.Parameter)
	require.NoError(t, err)
	url, got := server(t, "/v1development/profiles")
	of := resource.NewSchemaless(attribute.String("service.name", "trainer-of-the-sdk"), attribute.StringSlice("process.command_args", []string{"first-argument"}), attribute.Int("k8s.pod.restarts", 3))
	pusher, err := otel.PushProfiles(otlp.Config{Endpoint: url, Resource: map[string]any{"deployment.environment.name": "our-test"}}, of, tr)
	require.NoError(t, err)
	require.NoError(t, pusher.Stop(t.Context()))
	for _, text := range []string{"trainer-of-the-sdk", "first-argument", "k8s.pod.restarts", "our-test", "TestPushedProfilesHaveTheResource", "inuse_space"} {
		assert.Contains(t, *got, text)
	}
	assert.Zero(t, pusher.Stats().Points)

	_, err = otel.PushProfiles(otlp.Config{Endpoint: "collector"}, nil, tr)
	require.ErrorContains(t, err, `"collector" is not an endpoint`)
	_, err = otel.PushProfiles(otlp.Config{}, nil, nil)
	require.ErrorContains(t, err, "the source is nil")
}

// TestMetricsAreThoseOfThePusher: the SDK and package tracker/export/otlp push the same metrics.
func TestMetricsAreThoseOfThePusher(t *testing.T) {
	tr := newTracker(t, tracker.Config{})
	for _, kind := range []tracker.Kind{tracker.Parameter, "KV cache"} {
		_, err := tr.AllocBytes(3*alloc.MiB, kind)
		require.NoError(t, err)
	}
	url, got := server(t, "/v1/metrics")
	pusher, err := otlp.Start(otlp.Config{Endpoint: url, NoProfiles: true}, tr)
	require.NoError(t, err)
	require.NoError(t, pusher.Stop(t.Context()))
	pushed := new(metricspb.MetricsData)
	require.NoError(t, proto.Unmarshal([]byte(*got), pushed))

	type description struct{ unit, description, kind string }
	ours, values := make(map[string]description), make(map[string]int64)
	for _, m := range pushed.ResourceMetrics[0].ScopeMetrics[0].Metrics {
		kind := "gauge"
		if m.GetSum() != nil {
			kind = map[bool]string{true: "counter", false: "level"}[m.GetSum().IsMonotonic]
		}
		ours[m.Name] = description{m.Unit, m.Description, kind}
		for _, p := range append(m.GetSum().GetDataPoints(), m.GetGauge().GetDataPoints()...) {
			key := m.Name
			for _, a := range p.Attributes {
				if !strings.HasPrefix(a.Key, "hw.") {
					key += " " + a.Value.GetStringValue()
				}
			}
			values[key] = p.GetAsInt()
		}
	}
	want, metrics := collect(t, tr)
	theirs := make(map[string]description)
	for _, m := range metrics {
		kind := "gauge"
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok {
			kind = map[bool]string{true: "counter", false: "level"}[sum.IsMonotonic]
		}
		theirs[m.Name] = description{m.Unit, m.Description, kind}
	}
	assert.Equal(t, theirs, ours)
	assert.Equal(t, want, values)
}
