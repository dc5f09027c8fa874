package live

import (
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/metrics"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func (h *handler) metrics(w http.ResponseWriter, r *http.Request) {
	h.scrape(w, r, func(cfg metrics.Config) []metrics.Set {
		s := taken(h.source, cfg)
		return []metrics.Set{{Labels: metrics.DeviceLabels(s), Values: metrics.Of(s, cfg)}}
	})
}

// taken returns a snapshot that has what the metrics need.
func taken(from Source, cfg metrics.Config) *snapshot.Snapshot {
	if cfg.Suspects {
		return from.Snapshot()
	}
	return from.LightSnapshot()
}

// scrape answers with metrics in the format that the client asks for: OpenMetrics, or Prometheus's
// text format.
func (h *handler) scrape(w http.ResponseWriter, r *http.Request, sets func(metrics.Config) []metrics.Set) {
	q := newQuery(r)
	cfg := metrics.Config{TopCallSites: q.number("top", 100), Suspects: q.flag("suspects")}
	if q.refused(w) {
		return
	}
	contentType, openMetrics := metricsFormat(r.Header.Values("Accept"))
	h.send(w, r, file{contentType: contentType}, func(w io.Writer) error {
		return metrics.Write(w, sets(cfg), openMetrics)
	})
}

// metricsFormat returns the first of the two formats among those that a client prefers. A name here is the same in all
// ways to escape it, so a client gets the one that it names.
func metricsFormat(accept []string) (contentType string, openMetrics bool) {
	best := 0.0
	contentType = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"
	for _, format := range strings.Split(strings.Join(accept, ","), ",") {
		name, params, err := mime.ParseMediaType(format)
		q := 1.0
		if weight, err := strconv.ParseFloat(params["q"], 64); err == nil {
			q = weight
		}
		if err != nil || q <= best {
			continue
		}
		escaping := "; charset=utf-8; escaping=underscores"
		if slices.Contains([]string{"allow-utf-8", "dots", "values"}, params["escaping"]) {
			escaping = "; charset=utf-8; escaping=" + params["escaping"]
		}
		switch version := params["version"]; {
		case name == "text/plain" && (version == "" || version == "0.0.4"):
			best, contentType, openMetrics = q, "text/plain; version=0.0.4"+escaping, false
		case name == "application/openmetrics-text" && version == "1.0.0":
			best, contentType, openMetrics = q, "application/openmetrics-text; version=1.0.0"+escaping, true
		case name == "application/openmetrics-text" && (version == "" || version == "0.0.1"):
			best, contentType, openMetrics = q, "application/openmetrics-text; version=0.0.1"+escaping, true
		}
	}
	return contentType, openMetrics
}
