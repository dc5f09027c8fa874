package collector

import (
	"compress/gzip"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	commonpb "go.opentelemetry.io/proto/slim/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/slim/otlp/metrics/v1"
	profilespb "go.opentelemetry.io/proto/slim/otlp/profiles/v1development"
	"google.golang.org/protobuf/proto"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/otlp"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// An hour of a program that is pushed every 15 seconds.
const pushes = 240

// program is a program that allocates from many call stacks.
type program struct {
	tr     *tracker.MemTracker
	random *rand.Rand
	held   []*tracker.Buffer
}

func newProgram(t *testing.T) *program {
	t.Helper()
	device, err := sim.New(sim.Config{Memory: 64 * alloc.GiB})
	require.NoError(t, err)
	tr, err := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	require.NoError(t, err)
	t.Cleanup(func() { tr.Close() })
	return &program{tr: tr, random: rand.New(rand.NewPCG(3, 5))}
}

// step is a quarter of a minute.
func (p *program) step(t *testing.T) {
	t.Helper()
	for range 100 {
		if len(p.held) > 500 || len(p.held) > 0 && p.random.IntN(5) < 2 {
			i := p.random.IntN(len(p.held))
			require.NoError(t, p.held[i].Free())
			p.held = slices.Delete(p.held, i, i+1)
			continue
		}
		section := p.tr.Section(fmt.Sprintf("layer %d", p.random.IntN(8)))
		p.nested(t, 1+p.random.IntN(6))
		section.End()
	}
}

// nested allocates below as many frames.
func (p *program) nested(t *testing.T, depth int) {
	if depth > 0 {
		if depth%2 == 0 {
			p.nested(t, depth-1)
		} else {
			p.nested(t, depth-1)
		}
		return
	}
	kinds := []tracker.Kind{tracker.Parameter, tracker.Activation, tracker.Gradient, "KV \"cache\""}
	b, err := p.tr.Alloc(alloc.Shape{1 << p.random.IntN(12), 3}, alloc.Float16, kinds[p.random.IntN(len(kinds))])
	require.NoError(t, err)
	p.held = append(p.held, b)
}

// keyOf is the key of a sum. Totals are by call stack alone: a tracker adds up those of shapes that were freed long ago.
func keyOf(of, tensor, place string) string {
	if strings.HasPrefix(of, "alloc_") {
		tensor = ""
	}
	return of + "|" + tensor + "|" + place
}

// state returns the live memory and the totals of a snapshot, as sums does.
func state(s *snapshot.Snapshot) map[string]int64 {
	out := make(map[string]int64)
	for site := range s.CallSites() {
		tensor, place := fmt.Sprintf("%v|%v|%v", site.Kind, site.DType, site.Shape), fmt.Sprintf("%v|%s", site.Memory, site.Section)
		for _, f := range site.Stack {
			place += fmt.Sprintf("\n%s %s:%d", f.Function, f.File, f.Line)
		}
		for name, v := range map[string]int64{
			"alloc_objects": site.Total.Count, "alloc_space": int64(site.Total.Bytes), "inuse_objects": site.Live.Count, "inuse_space": int64(site.Live.Bytes),
		} {
			if v != 0 {
				out[keyOf(name, tensor, place)] += v
			}
		}
	}
	return out
}

// sums adds up what the Collector received. A profile that came twice, since the Collector died before it answered, has one ID.
func sums(t *testing.T, requests [][]byte) (sums map[string]int64, twice int) {
	t.Helper()
	sums, seen := make(map[string]int64), make(map[string]bool)
	for _, text := range requests {
		data := new(profilespb.ProfilesData)
		require.NoError(t, proto.Unmarshal(text, data))
		for _, r := range data.ResourceProfiles {
			for _, scope := range r.ScopeProfiles {
				for _, p := range scope.Profiles {
					id := hex.EncodeToString(p.ProfileId)
					if seen[id] {
						twice++
						continue
					}
					seen[id] = true
					add(sums, data.Dictionary, p)
				}
			}
		}
	}
	return sums, twice
}

func add(sums map[string]int64, d *profilespb.ProfilesDictionary, p *profilespb.Profile) {
	of := d.StringTable[p.SampleType.TypeStrindex]
	for _, sample := range p.Samples {
		labels := make(map[string]string)
		for _, i := range sample.AttributeIndices {
			a := d.AttributeTable[i]
			labels[strings.TrimPrefix(d.StringTable[a.KeyStrindex], "gpumem.")] = a.Value.GetStringValue()
		}
		tensor, place := fmt.Sprintf("%s|%s|%s", labels["kind"], labels["dtype"], labels["shape"]), labels["memory"]+"|"+labels["section"]
		for _, i := range d.StackTable[sample.StackIndex].LocationIndices {
			for _, line := range d.LocationTable[i].Lines {
				f := d.FunctionTable[line.FunctionIndex]
				place += fmt.Sprintf("\n%s %s:%d", d.StringTable[f.NameStrindex], d.StringTable[f.FilenameStrindex], line.Line)
			}
		}
		key := keyOf(of, tensor, place)
		if sums[key] += sample.Values[0]; sums[key] == 0 {
			delete(sums, key)
		}
	}
}

func gunzip(r io.Reader) ([]byte, error) {
	unpacked, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(unpacked)
}

// TestAnHourWithACollectorThatDies pushes an hour's load in a short time. The Collector is killed thrice while requests are
// under way, and started again some pushes later. In the end it has received the program's memory, stack for stack, and each
// request byte for byte as it was sent.
func TestAnHourWithACollectorThatDies(t *testing.T) {
	for _, scheme := range []string{"http", "grpc"} {
		t.Run(scheme, func(t *testing.T) {
			c := newCollector(t)
			endpoint := "grpc://" + c.grpc
			var between *proxy
			if scheme == "http" {
				between = newProxy(t, c.http, gunzip)
				endpoint = "http://" + between.address
			}
			program := newProgram(t)
			pusher, err := otlp.Start(otlp.Config{Endpoint: endpoint, Interval: time.Hour, Warn: func(err error) { t.Log(err) }}, program.tr)
			require.NoError(t, err)
			failed := 0
			for i := range pushes {
				program.step(t)
				dies := make(chan struct{})
				if i%80 == 40 {
					go func() {
						defer close(dies)
						time.Sleep(time.Duration(i/80) * time.Millisecond)
						c.kill(t)
					}()
				} else {
					close(dies)
				}
				limit := 10 * time.Second
				if i%80 >= 40 && i%80 < 43 {
					limit = 200 * time.Millisecond
				}
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				if err := pusher.Flush(ctx); err != nil {
					failed++
				}
				cancel()
				<-dies
				if i%80 == 43 {
					c.start(t)
				}
			}
			end, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // by itself, Stop takes ten seconds at most
			defer cancel()
			require.NoError(t, pusher.Stop(end))
			assert.Positive(t, failed)
			assert.Zero(t, pusher.Stats().ProfilesRefused+pusher.Stats().PointsDropped)
			c.kill(t)

			received := c.received(t, "profiles")
			got, twice := sums(t, received)
			want := state(program.tr.Snapshot())
			assert.Greater(t, len(want), 500)
			if !assert.Equal(t, len(want), len(got)) {
				return
			}
			for key, v := range want {
				require.Equal(t, v, got[key], key)
			}
			t.Logf("%d pushes failed, %d profiles came twice; %v", failed, twice, pusher.Stats())
			if between != nil {
				sameRequests(t, between, map[string][][]byte{"/v1development/profiles": received, "/v1/metrics": c.received(t, "metrics")})
			}
		})
	}
}

// sameRequests checks that all requests that were taken were received as they were sent, and nothing else was.
func sameRequests(t *testing.T, from *proxy, received map[string][][]byte) {
	t.Helper()
	sent, taken := make(map[string]map[string]bool), make(map[string]int)
	for range len(from.sent) {
		r := <-from.sent
		if sent[r.path] == nil {
			sent[r.path] = make(map[string]bool)
		}
		sent[r.path][plain(t, r.path, r.payload)] = true
		if r.taken {
			taken[r.path]++
		}
	}
	for path, all := range received {
		assert.Greater(t, taken[path], pushes-20, path)
		assert.GreaterOrEqual(t, len(all), taken[path], path)
		for _, one := range all {
			require.True(t, sent[path][plain(t, path, one)], "%s: a request of %d bytes is not as it was sent", path, len(one))
		}
	}
}

// plain returns a request of profiles without the liberties of the Collector: it moves the texts of resource attributes to the
// end of the string table, and it has another way to write link 0 and attribute 0, which are none. All else is as it was.
func plain(t *testing.T, path string, request []byte) string {
	t.Helper()
	if path == "/v1/metrics" {
		data := new(metricspb.MetricsData)
		require.NoError(t, proto.Unmarshal(request, data))
		return encoded(t, data)
	}
	data := new(profilespb.ProfilesData)
	require.NoError(t, proto.Unmarshal(request, data))
	d := data.Dictionary
	text := func(at int32) string { return d.StringTable[at] }
	for _, r := range data.ResourceProfiles {
		for _, a := range r.Resource.Attributes {
			if a.KeyStrindex != 0 {
				a.Key, a.KeyStrindex = text(a.KeyStrindex), 0
			}
			if v, ok := a.Value.Value.(*commonpb.AnyValue_StringValueStrindex); ok {
				a.Value.Value = &commonpb.AnyValue_StringValue{StringValue: text(v.StringValueStrindex)}
			}
		}
	}
	var last int32 // of the strings that anything else refers to
	for _, f := range d.FunctionTable {
		last = max(last, f.NameStrindex, f.FilenameStrindex)
	}
	for _, a := range d.AttributeTable {
		last = max(last, a.KeyStrindex)
	}
	for _, m := range d.MappingTable {
		last = max(last, m.FilenameStrindex)
	}
	for _, r := range data.ResourceProfiles {
		for _, p := range r.ScopeProfiles[0].Profiles {
			last = max(last, p.SampleType.TypeStrindex, p.SampleType.UnitStrindex, p.PeriodType.TypeStrindex)
		}
	}
	d.StringTable = d.StringTable[:last+1]
	d.LinkTable[0].TraceId, d.LinkTable[0].SpanId, d.AttributeTable[0].Value = nil, nil, nil
	return encoded(t, data)
}

// encoded returns a message with its fields in the order of their numbers; the Collector writes some in another.
func encoded(t *testing.T, m proto.Message) string {
	t.Helper()
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	require.NoError(t, err)
	return string(text)
}
