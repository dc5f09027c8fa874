package house

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/checkpoint"
	"github.com/gpumemtrack/gpumemtrack/estimate/llamacpp"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
	"github.com/gpumemtrack/gpumemtrack/estimate/serving"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
	"github.com/gpumemtrack/gpumemtrack/nvml"
	"github.com/gpumemtrack/gpumemtrack/nvml/chart"
	"github.com/gpumemtrack/gpumemtrack/nvml/recordings"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/otlp"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/prom"
	"github.com/gpumemtrack/gpumemtrack/tracker/gpumemtest"
	"github.com/gpumemtrack/gpumemtrack/tracker/live/viewer"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/replay"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/explain"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/rewind"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/sections"
)

// zeros are the zero values of all public types but interfaces, functions and generic ones.
var zeros = []any{
	new(alloc.Block), new(alloc.BlockState), new(alloc.Bytes), new(alloc.DType), new(alloc.MemInfo), new(alloc.Memory),
	new(alloc.OutOfMemoryError), new(alloc.Ptr), new(alloc.Segment), new(alloc.Shape), new(alloc.Stats),
	new(alloc.Stream), new(alloc.Usage),
	new(cache.Cache), new(cache.Config),
	new(cuda.Error), new(cuda.Info), new(cuda.PinnedConfig), new(cuda.PoolConfig),
	new(sim.Config), new(sim.Fault),
	new(estimate.Amount), new(estimate.Compared), new(estimate.Decoding), new(estimate.Value), new(estimate.Footprint),
	new(estimate.KVConfig), new(estimate.LayerError), new(estimate.LoRA), new(estimate.Loop), new(estimate.Machine), new(estimate.Measured),
	new(estimate.Memory), new(estimate.Quantized), new(estimate.Report), new(estimate.Row), new(estimate.Sharding), new(estimate.Term),
	new(checkpoint.File), new(checkpoint.InPrompt), new(checkpoint.Stored),
	new(llamacpp.Quantization), new(llamacpp.Server),
	new(serving.CacheSpec), new(serving.SGLang), new(serving.SGLangBudget), new(serving.SGLangPlan), new(serving.SGLangStart), new(serving.TooSmallError), new(serving.VLLM), new(serving.VLLMBudget), new(serving.VLLMGroup), new(serving.VLLMPlan), new(serving.VLLMStart),
	new(nn.AdaptiveAvgPool), new(nn.AdaptiveMaxPool), new(nn.Attention), new(nn.AvgPool), new(nn.BatchNorm),
	new(nn.CTC), new(nn.Class), new(nn.Concat), new(nn.Conv1d), new(nn.Conv2d), new(nn.Conv3d), new(nn.CrossEntropy),
	new(nn.Dropout), new(nn.Embedding), new(nn.Flatten), new(nn.Flow), new(nn.GRU), new(nn.GroupNorm),
	new(nn.InstanceNorm),
	new(nn.LSTM), new(nn.LayerNorm), new(nn.Linear), new(nn.LocalResponseNorm),
	new(nn.MaxPool), new(nn.Module), new(nn.NextToken), new(nn.Op), new(nn.Own), new(nn.Param), new(nn.PReLU), new(nn.Permute),
	new(nn.PixelShuffle), new(nn.RMSNorm), new(nn.RNN), new(nn.ReLU), new(nn.Reshape), new(nn.Residual),
	new(nn.Sequential), new(nn.Tensor),
	new(nn.Upsample), new(nn.ZeroPad2d),
	new(zoo.Model), new(zoo.Published),
	new(nvml.Builder), new(nvml.Config), new(nvml.Device), new(nvml.Quantity), new(nvml.Reading), new(nvml.Recorder),
	new(nvml.Recording), new(nvml.Scope), new(nvml.Series), new(nvml.Target),
	new(chart.Config), new(recordings.Config), new(recordings.File),
	new(tracker.Buffer), new(tracker.Config), new(tracker.MemTracker), new(tracker.OutOfMemoryError),
	new(tracker.Section), new(tracker.SectionConfig),
	new(attach.Config), new(attach.DriverUse), new(attach.Source), new(attach.Watcher),
	new(export.Line), new(export.Row), new(export.Usage), new(export.Deferred),
	new(files.File),
	new(otlp.Config), new(otlp.Pusher), new(otlp.Stats),
	new(viewer.Config), new(viewer.Progress), new(viewer.Source), new(viewer.Viewer),
	new(prom.Config),
	new(gpumemtest.Config),
	new(mem.Action), new(mem.CallSiteTally), new(mem.Frame), new(mem.Kind), new(mem.Path), new(mem.Stack), new(mem.Tally),
	new(replay.Config), new(replay.Explanation), new(replay.Levels), new(replay.Result),
	new(snapshot.Allocation), new(snapshot.CallSiteStats), new(snapshot.StackStats), new(snapshot.Change), new(snapshot.Delta), new(snapshot.DeltaBuilder),
	new(snapshot.Devices), new(snapshot.Dump), new(snapshot.Event), new(snapshot.Group), new(snapshot.Levels),
	new(snapshot.Mark), new(snapshot.OOM), new(snapshot.Origin), new(snapshot.Place), new(snapshot.Snapshot), new(snapshot.Totals),
	new(explain.Explanation), new(explain.Line),
	new(leaks.Leak), new(leaks.Suspect),
	new(rewind.Moment),
	new(sections.Data), new(sections.Estimate), new(sections.Measured), new(sections.MemoryUse), new(sections.Profile),
	new(sections.Row),
}

// settings are types that a program fills in and nobody writes as JSON, as patterns of their names.
var settings = regexp.MustCompile(`^(\w+\.\w*Config|nn\.\w+|estimate\.(KVConfig|LoRA|Loop|Machine|Quantized|Sharding|Measured)|checkpoint\.InPrompt|llamacpp\.\w+|serving\.(CacheSpec|VLLM|VLLMStart|SGLang|SGLangStart)|sim\.\w+|zoo\.(Model|Published))$`)

var stringer = reflect.TypeFor[fmt.Stringer]()

// TestZeroValuesShow prints and marshals the zero value of each public type: a program meets one where something failed,
// or in a field that nobody set. None panics, and JSON has the names that the schemas have.
func TestZeroValuesShow(t *testing.T) {
	var has []string
	for _, v := range zeros {
		of := reflect.TypeOf(v).Elem()
		path, _ := strings.CutPrefix(of.PkgPath(), module)
		has = append(has, path+"."+of.Name())
		value := reflect.ValueOf(v).Elem()
		for _, v := range []any{value.Interface(), v} {
			// What has a String by its address alone is used by its address alone.
			if _, prints := v.(fmt.Stringer); prints || of.Kind() == reflect.Struct && !reflect.PointerTo(of).Implements(stringer) {
				for _, verb := range []string{"%v", "%+v"} {
					assert.NotRegexp(t, `%!|PANIC|0x[0-9a-f]{9}`, fmt.Sprintf(verb, v), "%s of %T", verb, v)
				}
			}
			var text []byte
			assert.NotPanics(t, func() { text, _ = json.Marshal(v) }, "%T", v)
			if !settings.MatchString(of.String()) {
				assert.NotRegexp(t, `"[A-Z]\w*":`, string(text), "%T", v)
			}
		}
	}
	for _, r := range packages(t) {
		if r.public() && !strings.HasPrefix(r.path, "contrib/") && r.path != "tracker/cucontext" {
			for _, file := range r.files {
				for _, s := range typeSpecs(file) {
					switch s.Type.(type) {
					case *ast.InterfaceType, *ast.FuncType:
						continue
					}
					if s.Name.IsExported() && !s.Assign.IsValid() && s.TypeParams == nil {
						assert.True(t, slices.Contains(has, r.path+"."+s.Name.Name), "zeros lacks %s.%s", r.path, s.Name.Name)
					}
				}
			}
		}
	}
}
