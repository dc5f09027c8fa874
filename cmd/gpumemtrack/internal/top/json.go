package top

import (
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

const topSchema = "gpumemtrack.top/1"

// topOutput is what top --json prints.
type topOutput struct {
	Schema  string           `json:"schema"`
	Time    time.Time        `json:"time"`
	Source  string           `json:"source"`
	Error   string           `json:"error,omitempty"`
	Devices []map[string]any `json:"devices"`
	Pages   []topPageJSON    `json:"pages"`
}

type topProcessJSON struct {
	PID     int          `json:"pid"`
	Memory  *alloc.Bytes `json:"memory_bytes"`
	Command string       `json:"command"`

	User      *string  `json:"user"`
	Container *string  `json:"container"`
	Age       *float64 `json:"age_seconds"`
	CPU       *float64 `json:"cpu_percent"`
	SM        *float64 `json:"sm_percent"`
}

type topPageJSON struct {
	URL      string           `json:"url"`
	Error    string           `json:"error,omitempty"`
	Process  *snapshot.Origin `json:"process,omitempty"`
	Device   string           `json:"device,omitempty"`
	Live     alloc.Bytes      `json:"live_bytes"`
	Peak     alloc.Bytes      `json:"peak_bytes"`
	Sites    []topSiteJSON    `json:"call_sites"`
	Suspects []string         `json:"suspects"`
}

type topSiteJSON struct {
	Site  string      `json:"call_site"`
	Bytes alloc.Bytes `json:"bytes"`
	Count int64       `json:"count"`
}

func topJSON(sample topSample) topOutput {
	out := topOutput{Schema: topSchema, Time: sample.Time, Source: sample.Source, Devices: []map[string]any{}, Pages: []topPageJSON{}}
	if sample.Silent > 0 {
		out.Error = "the driver did not answer"
	}
	for _, d := range sample.Devices {
		device := sensorsOf(d.Reading)
		device["processes"] = processesJSON(d)
		if d.ProcessesErr != nil {
			device["processes_error"] = d.ProcessesErr.Error()
		}
		out.Devices = append(out.Devices, device)
	}
	for _, p := range sample.Pages {
		out.Pages = append(out.Pages, pageJSON(p))
	}
	return out
}

func processesJSON(d topDevice) []topProcessJSON {
	list := []topProcessJSON{}
	for _, p := range d.Processes {
		list = append(list, topProcessJSON{
			PID: p.PID, Command: p.Command, Memory: known(p.Memory, p.Memory >= 0), User: known(p.User, p.User != ""), Container: known(p.Container, p.Container != ""),
			Age: known(p.Age.Seconds(), p.Age >= 0), CPU: known(p.CPU, p.CPU >= 0), SM: known(p.SM, p.SM >= 0),
		})
	}
	return list
}

// known returns nil, which JSON prints as null, for a value that is not known.
func known[T any](v T, ok bool) *T {
	if !ok {
		return nil
	}
	return &v
}

func pageJSON(p topPage) topPageJSON {
	out := topPageJSON{URL: p.URL, Device: p.Device, Live: p.Live, Peak: p.Peak, Sites: []topSiteJSON{}, Suspects: append([]string{}, p.Suspects...)}
	switch {
	case p.Err != nil:
		out.Error = p.Err.Error()
	case !p.Known:
		out.Error = "it did not answer"
	default:
		out.Process = &p.Origin
	}
	for _, l := range p.Sites {
		out.Sites = append(out.Sites, topSiteJSON{l.Key, l.After.Bytes, l.After.Count})
	}
	return out
}
