package otlp

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	commonpb "go.opentelemetry.io/proto/slim/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/slim/otlp/metrics/v1"
	profilespb "go.opentelemetry.io/proto/slim/otlp/profiles/v1development"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// server is an OTLP server over HTTP that adds up what it takes.
type server struct {
	mu       sync.Mutex
	answer   func(path string, payload []byte) (*http.Response, error) // nil takes everything
	requests map[string]int                                            // by path
	ids      map[string]bool                                           // of profiles, each counted once
	sums     map[string]int64                                          // by sample type and sample
	metrics  map[string]any                                            // the latest, by name and attributes
	last     *profilespb.ProfilesData
	payloads []string
}

func newServer() *server {
	return &server{requests: make(map[string]int), ids: make(map[string]bool), sums: make(map[string]int64), metrics: make(map[string]any)}
}

func reply(status int, header http.Header, body []byte) (*http.Response, error) {
	if header == nil {
		header = make(http.Header)
	}
	return &http.Response{StatusCode: status, Status: fmt.Sprintf("%d %s", status, http.StatusText(status)), Header: header, Body: io.NopCloser(strings.NewReader(string(body)))}, nil
}

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	unpacked, err := gzip.NewReader(r.Body)
	if err != nil {
		return nil, err
	}
	payload, err := io.ReadAll(unpacked)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests[r.URL.Path]++
	s.payloads = append(s.payloads, string(payload))
	if s.answer != nil {
		if response, err := s.answer(r.URL.Path, payload); response != nil || err != nil {
			return response, err
		}
	}
	if strings.HasSuffix(r.URL.Path, "/profiles") {
		err = s.takeProfiles(payload)
	} else {
		err = s.takeMetrics(payload)
	}
	if err != nil {
		return nil, err
	}
	return reply(http.StatusOK, nil, nil)
}

func (s *server) takeProfiles(payload []byte) error {
	data := new(profilespb.ProfilesData)
	if err := proto.Unmarshal(payload, data); err != nil {
		return err
	}
	s.last = data
	d := data.Dictionary
	for _, resource := range data.ResourceProfiles {
		for _, p := range resource.ScopeProfiles[0].Profiles {
			id := hex.EncodeToString(p.ProfileId)
			if s.ids[id] {
				continue
			}
			s.ids[id] = true
			of := d.StringTable[p.SampleType.TypeStrindex]
			for _, sample := range p.Samples {
				key := of + "\n" + describe(d, sample)
				if s.sums[key] += sample.Values[0]; s.sums[key] == 0 {
					delete(s.sums, key)
				}
			}
		}
	}
	return nil
}

// describe returns the labels and the stack of a sample as text.
func describe(d *profilespb.ProfilesDictionary, sample *profilespb.Sample) string {
	var b strings.Builder
	for _, i := range sample.AttributeIndices {
		a := d.AttributeTable[i]
		if key := d.StringTable[a.KeyStrindex]; key != "hw.id" {
			fmt.Fprintf(&b, "%s=%s ", strings.TrimPrefix(key, "gpumem."), a.Value.GetStringValue())
		}
	}
	for _, i := range d.StackTable[sample.StackIndex].LocationIndices {
		for _, line := range d.LocationTable[i].Lines {
			f := d.FunctionTable[line.FunctionIndex]
			fmt.Fprintf(&b, "\n%s %s:%d", d.StringTable[f.NameStrindex], d.StringTable[f.FilenameStrindex], line.Line)
		}
	}
	return b.String()
}

func (s *server) takeMetrics(payload []byte) error {
	data := new(metricspb.MetricsData)
	if err := proto.Unmarshal(payload, data); err != nil {
		return err
	}
	for _, r := range data.ResourceMetrics {
		for _, m := range r.ScopeMetrics[0].Metrics {
			for _, p := range append(m.GetSum().GetDataPoints(), m.GetGauge().GetDataPoints()...) {
				key := m.Name
				for _, a := range p.Attributes {
					if !strings.HasPrefix(a.Key, "hw.") {
						key += " " + a.Value.GetStringValue()
					}
				}
				s.metrics[key] = p.GetAsInt()
			}
		}
	}
	return nil
}

// expected returns what a server should have of a snapshot.
func expected(s *snapshot.Snapshot) map[string]int64 {
	sums := make(map[string]int64)
	for site := range s.CallSites() {
		var b strings.Builder
		set := func(key, value string) {
			if value != "" {
				fmt.Fprintf(&b, "%s=%s ", key, value)
			}
		}
		if site.DType.Bits() > 0 {
			set("kind", site.Kind.String())
			set("dtype", site.DType.String())
			set("shape", site.Shape.String())
			stream := "default stream"
			if site.Stream != 0 {
				stream = fmt.Sprintf("stream %#x", uint64(site.Stream))
			}
			set("stream", stream)
		}
		set("memory", site.Memory.String())
		set("section", site.Section)
		for _, f := range site.Stack {
			fmt.Fprintf(&b, "\n%s %s:%d", f.Function, f.File, f.Line)
		}
		values := []int64{site.Total.Count, int64(site.Total.Bytes), site.Live.Count, int64(site.Live.Bytes), 0, 0}
		if site.Memory.OnHost() {
			values = []int64{0, 0, 0, 0, site.Live.Count, int64(site.Live.Bytes)}
		}
		for i, v := range values {
			if v != 0 {
				sums[sampleTypes[i].name+"\n"+b.String()] += v
			}
		}
	}
	return sums
}

func noEnv(string) string { return "" }

// start starts a pusher that pushes when the test says so.
func start(t *testing.T, to http.RoundTripper, cfg Config, sources ...Source) *Pusher {
	t.Helper()
	cfg.Endpoint, cfg.transport = "http://collector:4318", to
	if cfg.getenv == nil {
		cfg.getenv = noEnv
	}
	if cfg.Interval == 0 {
		cfg.Interval = 1000 * time.Hour
	}
	p, err := Start(cfg, sources...)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = p.Stop(ctx)
	})
	return p
}

func TestPushedProfilesAddUpToTheState(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	to := newServer()
	p := start(t, to, Config{}, tr)
	require.NoError(t, p.Flush(t.Context()))
	exporttest.Train(t, tr)
	require.NoError(t, p.Flush(t.Context()))
	assert.Equal(t, expected(tr.Snapshot()), to.sums)

	before := to.requests["/v1development/profiles"]
	require.NoError(t, p.Flush(t.Context()))
	assert.Equal(t, before, to.requests["/v1development/profiles"], "nothing changed")

	b, err := tr.AllocBytes(3*alloc.MiB, tracker.Gradient)
	require.NoError(t, err)
	require.NoError(t, p.Flush(t.Context()))
	assert.Len(t, to.last.ResourceProfiles[0].ScopeProfiles[0].Profiles[0].Samples, 1, "only what changed")
	require.NoError(t, b.Free())
	require.NoError(t, p.Stop(t.Context()))
	assert.Equal(t, expected(tr.Snapshot()), to.sums)
	assert.Zero(t, p.Stats().ProfilesRefused+p.Stats().PointsDropped)
	assert.Len(t, to.ids, int(p.Stats().Profiles))
}

// churn allocates and frees at random, with so many shapes that the tracker forgets some.
func churn(t *testing.T, tr *tracker.MemTracker, random *rand.Rand, held []*tracker.Buffer, steps int) []*tracker.Buffer {
	t.Helper()
	kinds := mem.Kinds()
	for range steps {
		if len(held) > 20 || len(held) > 0 && random.IntN(2) == 0 {
			i := random.IntN(len(held))
			require.NoError(t, held[i].Free())
			held = slices.Delete(held, i, i+1)
			continue
		}
		b, err := tr.Alloc(alloc.Shape{1 + random.IntN(4000)}, alloc.Uint8, kinds[random.IntN(len(kinds))])
		require.NoError(t, err)
		held = append(held, b)
	}
	return held
}

// shapes are the labels that a source forgets of buffers that were all freed long ago.
var shapes = regexp.MustCompile(`(?m)^kind=.*stream=default stream `)

// ofPlaces adds the totals up over shapes.
func ofPlaces(sums map[string]int64) map[string]int64 {
	out := make(map[string]int64)
	for key, sum := range sums {
		if strings.HasPrefix(key, "alloc_") {
			key = shapes.ReplaceAllString(key, "")
		}
		out[key] += sum
	}
	return out
}

// TestRandomProgramsAddUp has shapes that never repeat, whose totals the tracker moves to their place, and a server that
// loses some answers.
func TestRandomProgramsAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(7, 11))
		tr := exporttest.New(t, tracker.Config{})
		to := newServer()
		to.answer = func(string, []byte) (*http.Response, error) {
			if random.IntN(4) == 0 {
				return reply(http.StatusServiceUnavailable, nil, nil)
			}
			return nil, nil
		}
		p := start(t, to, Config{NoMetrics: true}, tr)
		var held []*tracker.Buffer
		for range 40 {
			held = churn(t, tr, random, held, 400)
			require.NoError(t, p.Flush(t.Context()))
			for key, sum := range to.sums {
				require.True(t, sum > 0, key)
			}
		}
		same := maps.Equal(ofPlaces(expected(tr.Snapshot())), ofPlaces(to.sums))
		assert.True(t, same, "the sums differ")
		assert.Positive(t, p.Stats().Retries)
	})
}

// TestAnswerLost has a server that takes a request and dies before it answers: the same bytes come again, with the IDs that
// it has.
func TestAnswerLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := exporttest.New(t, tracker.Config{})
		to := newServer()
		lost := 0
		to.answer = func(_ string, payload []byte) (*http.Response, error) {
			if lost++; lost == 1 {
				require.NoError(t, to.takeProfiles(payload))
				return nil, errors.New("connection reset by peer")
			}
			return nil, nil
		}
		p := start(t, to, Config{NoMetrics: true}, tr)
		exporttest.Train(t, tr)
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		require.ErrorContains(t, p.Flush(short), "connection reset by peer")
		_, err := tr.AllocBytes(alloc.MiB, tracker.Gradient) // since
		require.NoError(t, err)
		require.NoError(t, p.Flush(t.Context()))
		require.Len(t, to.payloads, 3)
		assert.Equal(t, to.payloads[0], to.payloads[1])
		assert.Equal(t, expected(tr.Snapshot()), to.sums)
	})
}

func TestDeadServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := exporttest.New(t, tracker.Config{})
		to := newServer()
		var times []time.Duration
		began := time.Now()
		to.answer = func(path string, _ []byte) (*http.Response, error) {
			if strings.HasSuffix(path, "profiles") {
				times = append(times, time.Since(began))
			}
			return nil, errors.New("no route to host")
		}
		var warnings []string
		p := start(t, to, Config{Interval: 15 * time.Second, Warn: func(err error) {
			to.mu.Lock()
			defer to.mu.Unlock()
			warnings = append(warnings, err.Error())
		}}, tr)
		exporttest.Train(t, tr)
		for range 240 { // an hour
			_, err := tr.AllocBytes(alloc.KiB, tracker.Gradient)
			require.NoError(t, err)
			time.Sleep(15 * time.Second)
		}
		to.mu.Lock()
		assert.Less(t, len(times), 130, "an attempt each half minute at most, after the first ones")
		assert.InDelta(t, 1.0, (times[1] - times[0]).Seconds(), 0.51)
		for _, payload := range to.payloads {
			assert.Less(t, len(payload), 64<<10)
		}
		assert.Len(t, warnings, 3, "that both fail, and that data points are dropped: %q", warnings)
		to.mu.Unlock()
		stats := p.Stats()
		assert.Greater(t, stats.PointsDropped, int64(4000), "more than a quarter of an hour waits for no server")

		to.mu.Lock()
		to.answer = nil // it is back
		to.mu.Unlock()
		require.NoError(t, p.Flush(t.Context()))
		assert.Equal(t, expected(tr.Snapshot()), to.sums, "no profile is lost")
		err := p.Stop(t.Context())
		require.ErrorContains(t, err, "push metrics: ")
		require.ErrorContains(t, err, "data points were dropped: ")
		assert.Equal(t, any(p.Stats().PointsDropped), to.metrics["gpumem.otlp.dropped metrics"])
	})
}

func TestStopDoesNotWaitForADeadServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := exporttest.New(t, tracker.Config{})
		exporttest.Train(t, tr)
		to := newServer()
		to.answer = func(string, []byte) (*http.Response, error) { return nil, errors.New("no route to host") }
		p := start(t, to, Config{}, tr)
		began := time.Now()
		err := p.Stop(t.Context())
		assert.LessOrEqual(t, time.Since(began), lastPush)
		assert.ErrorContains(t, err, "push profiles: the latest changes did not reach the server: ")
		assert.ErrorContains(t, err, "no route to host")
		assert.Equal(t, err, p.Stop(t.Context()))
	})
}

func TestRefusedProfilesArePaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := exporttest.New(t, tracker.Config{})
		to := newServer()
		to.answer = func(path string, _ []byte) (*http.Response, error) {
			if strings.HasSuffix(path, "profiles") {
				return reply(http.StatusNotFound, nil, nil)
			}
			return nil, nil
		}
		var warnings []string
		p := start(t, to, Config{Interval: 15 * time.Second, Warn: func(err error) { warnings = append(warnings, err.Error()) }}, tr)
		exporttest.Train(t, tr)
		time.Sleep(time.Hour)
		to.mu.Lock()
		assert.Less(t, to.requests["/v1development/profiles"], 12)
		to.answer = nil
		to.mu.Unlock()
		assert.Equal(t, []string{"push profiles: refused: 404 Not Found from http://collector:4318/v1development/profiles"}, warnings)
		time.Sleep(maxPause + time.Minute)
		assert.Equal(t, expected(tr.Snapshot()), to.sums, "they are sent when the server takes profiles")
		assert.ErrorContains(t, p.Stop(t.Context()), "profiles were refused")
	})
}

func TestPartialSuccess(t *testing.T) {
	for name, rejected := range map[string]byte{"some": 1, "all": 4} {
		t.Run(name, func(t *testing.T) {
			tr := exporttest.New(t, tracker.Config{})
			exporttest.Train(t, tr)
			to := newServer()
			to.answer = func(string, []byte) (*http.Response, error) {
				return reply(http.StatusOK, nil, append([]byte{0x0a, 8, 0x08, rejected, 0x12, 4}, "full"...))
			}
			p := start(t, to, Config{NoMetrics: true}, tr)
			err := p.Flush(t.Context())
			assert.Equal(t, Stats{Profiles: 4 - int64(rejected), ProfilesRefused: int64(rejected)}, p.Stats())
			assert.Equal(t, 1, to.requests["/v1development/profiles"])
			if rejected == 4 {
				assert.ErrorContains(t, err, "refused: 4 of 4: full")
			} else {
				assert.NoError(t, err)
			}
		})
	}
}

// TestBatchesFit has more call sites than a request holds.
func TestBatchesFit(t *testing.T) {
	to := newServer()
	source := manySites(20_000, 24)
	p := start(t, to, Config{NoMetrics: true}, source)
	require.NoError(t, p.Flush(t.Context()))
	assert.Greater(t, len(to.payloads), 3)
	for _, payload := range to.payloads {
		assert.Less(t, len(payload), maxBatchBytes*5/4)
	}
	assert.Equal(t, expected(source.LightSnapshot()), to.sums)
}

func TestMetricsAndResources(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{Origin: snapshot.Origin{
		Host: "node-1", PID: 7, Program: "train", Rank: new(3), WorldSize: 8, Container: "pod 11111111-2222-3333-4444-555555555555, containerd 0123456789ab",
	}})
	exporttest.Train(t, tr)
	to := newServer()
	env := func(name string) string {
		return map[string]string{"OTEL_RESOURCE_ATTRIBUTES": "k8s.node.name=gpu%2D7, deployment.environment.name=test", "OTEL_SERVICE_NAME": "trainer"}[name]
	}
	p := start(t, to, Config{getenv: env, Resource: map[string]any{"process.command_args": []string{"train", "-v"}}}, tr)
	require.NoError(t, p.Flush(t.Context()))
	s := tr.Snapshot()
	assert.Equal(t, any(int64(s.Peak.Bytes)), to.metrics["gpumem.memory.live.peak"])
	assert.Equal(t, any(s.Total.Count), to.metrics["gpumem.memory.allocations"])
	assert.Equal(t, any(int64(s.DriverTotal)), to.metrics["hw.gpu.memory.limit"])

	got := make(map[string]string)
	for _, a := range to.last.ResourceProfiles[0].Resource.Attributes {
		got[a.Key] = printed(a.Value)
	}
	assert.Equal(t, map[string]string{
		"service.name": "trainer", "k8s.node.name": "gpu-7", "deployment.environment.name": "test", "host.name": "node-1", "process.pid": "7",
		"process.executable.name": "train", "k8s.pod.uid": "11111111-2222-3333-4444-555555555555", "container.id": "0123456789ab",
		"container.runtime.name": "containerd", "gpumem.rank": "3", "gpumem.world_size": "8", "process.command_args": "train -v",
	}, got)
	profile := to.last.ResourceProfiles[0].ScopeProfiles[0].Profiles[0]
	assert.NotZero(t, profile.TimeUnixNano)
	assert.Equal(t, uint64(s.Time.UnixNano())-profile.TimeUnixNano > 0, true)
	for _, table := range []any{to.last.Dictionary.StringTable[0], len(to.last.Dictionary.StackTable[0].LocationIndices)} {
		assert.Zero(t, table, "the first entry of each table is the zero value")
	}
}

func printed(v *commonpb.AnyValue) string {
	switch v := v.Value.(type) {
	case *commonpb.AnyValue_IntValue:
		return fmt.Sprint(v.IntValue)
	case *commonpb.AnyValue_ArrayValue:
		var all []string
		for _, one := range v.ArrayValue.Values {
			all = append(all, printed(one))
		}
		return strings.Join(all, " ")
	case *commonpb.AnyValue_StringValue:
		return v.StringValue
	}
	return ""
}

func TestStartRefuses(t *testing.T) {
	for want, cfg := range map[string]Config{
		"no endpoint":                          {},
		`no scheme "ftp"`:                      {Endpoint: "ftp://x"},
		`"localhost:4318" is not an endpoint`:  {Endpoint: "localhost:4318"},
		"an interval of -1s: want more than 0": {Endpoint: "http://x", Interval: -time.Second},
	} {
		cfg.getenv = noEnv
		_, err := Start(cfg)
		assert.ErrorContains(t, err, want)
	}
	_, err := Start(Config{Endpoint: "http://x", getenv: func(name string) string {
		return map[string]string{"OTEL_RESOURCE_ATTRIBUTES": "a"}[name]
	}})
	assert.ErrorContains(t, err, "OTEL_RESOURCE_ATTRIBUTES: ")
}
