package otlp

import (
	"cmp"
	"maps"
	"regexp"
	"strconv"

	commonpb "go.opentelemetry.io/proto/slim/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/slim/otlp/resource/v1"

	wire "github.com/gpumemtrack/gpumemtrack/internal/otlp"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// They find the parts of Origin.Container.
var (
	podUID      = regexp.MustCompile(`^pod ([0-9a-f-]+)`)
	containerID = regexp.MustCompile(`(?:^|, )([a-z-]+) ([0-9a-f]{12})$`)
	unitName    = regexp.MustCompile(`^unit (.+)$`)
)

// resourceOf returns the resource of a process: what was configured, and what is known of the process itself, which wins.
func resourceOf(configured map[string]any, o snapshot.Origin) *resourcepb.Resource {
	all := maps.Clone(configured)
	if all == nil {
		all = make(map[string]any)
	}
	set := func(key, value string) {
		if value != "" {
			all[key] = value
		}
	}
	set("host.name", o.Host)
	set("process.executable.name", o.Program)
	if o.PID != 0 {
		all["process.pid"] = int64(o.PID)
	}
	if m := podUID.FindStringSubmatch(o.Container); m != nil {
		set("k8s.pod.uid", m[1])
	}
	if m := containerID.FindStringSubmatch(o.Container); m != nil {
		set("container.id", m[2])
		if m[1] != "container" { // its runtime is not known
			set("container.runtime.name", m[1])
		}
	}
	if m := unitName.FindStringSubmatch(o.Container); m != nil {
		set("gpumem.systemd.unit", m[1])
	}
	if o.Rank != nil {
		all["gpumem.rank"] = int64(*o.Rank)
	}
	if o.WorldSize != 0 {
		all["gpumem.world_size"] = int64(o.WorldSize)
	}
	if all["service.name"] == nil {
		all["service.name"] = cmp.Or(o.Program, "unknown_service")
	}
	return wire.Resource(all)
}

// nvidia is the form of NVIDIA's UUIDs.
var nvidia = regexp.MustCompile(`^(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// deviceOf returns the attributes of a device that the conventions for hardware name. Without a UUID, the ordinal is all that
// distinguishes the process's devices.
func deviceOf(s *snapshot.Snapshot) []*commonpb.KeyValue {
	device := []*commonpb.KeyValue{
		wire.String("hw.id", cmp.Or(s.UUID, strconv.Itoa(s.Ordinal))), wire.String("hw.type", "gpu"),
		wire.String("hw.name", s.Device), wire.String("hw.model", s.Device),
	}
	if nvidia.MatchString(s.UUID) {
		device = append(device, wire.String("hw.vendor", "NVIDIA"))
	}
	return device
}
