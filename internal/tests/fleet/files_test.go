// Package fleet_test holds the files of docs/fleet against what the programs serve.
package fleet_test

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/live"
)

const folder = "../../../docs/fleet"

func text(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(folder, name))
	require.NoError(t, err)
	return b
}

// readYAML reads a file into a struct that has all its fields.
func readYAML(t *testing.T, name string, into any) {
	t.Helper()
	d := yaml.NewDecoder(bytes.NewReader(text(t, name)))
	d.KnownFields(true)
	require.NoError(t, d.Decode(into), name)
}

type rules struct {
	Groups []struct {
		Name, Interval string
		Rules          []struct {
			Record, Alert, Expr, For string
			Labels, Annotations      map[string]string
		}
	}
}

type target struct{ Type, UID string }

type panel struct {
	ID      int
	Title   string
	GridPos struct{ X, Y, W, H int }
	Targets []struct {
		Expr, LegendFormat, RefID string
		Datasource                target
	}
}

type dashboard struct {
	UID, Title string
	Panels     []panel
	Templating struct {
		List []struct {
			Name  string
			Query struct{ Query string }
		}
	}
}

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	var d dashboard
	require.NoError(t, json.Unmarshal(text(t, "dashboard.json"), &d))
	require.NotEmpty(t, d.Panels)
	return d
}

// served returns what a program answers at a path of the handler.
func served(t *testing.T, tr *tracker.MemTracker, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	live.Handler(tr).ServeHTTP(w, httptest.NewRequest("GET", "http://127.0.0.1:6061"+path, nil))
	require.Equal(t, 200, w.Code, "%s: %s", path, w.Body)
	return w
}

var (
	metricName = regexp.MustCompile(`\bgpumem[_:][a-z0-9_:]+`)
	grouping   = regexp.MustCompile(`\b(?:by|without|ignoring) \(([a-z_, ]+)\)`)
	legend     = regexp.MustCompile(`{{ ?\$?(?:labels\.)?([a-z_]+) ?}}`)
	word       = regexp.MustCompile(`[a-z_]+`)
	sample     = regexp.MustCompile(`(?m)^(gpumem_[a-z_]+){(.*)} `)
	labelName  = regexp.MustCompile(`([a-z_]+)="`)
)

// TestEveryMetricAndLabelIsServed looks up each name that the rules and the dashboard
// use among those of /metrics, and those that the rules record.
func TestEveryMetricAndLabelIsServed(t *testing.T) {
	var r rules
	readYAML(t, "rules.yml", &r)
	metrics, labels := make(map[string]bool), map[string]bool{"job": true, "instance": true} // which Prometheus adds
	for _, s := range sample.FindAllStringSubmatch(served(t, program(t), scrapePath(t)).Body.String(), -1) {
		metrics[s[1]] = true
		for _, l := range labelName.FindAllStringSubmatch(s[2], -1) {
			labels[l[1]] = true
		}
	}
	var queries, texts []string
	for _, g := range r.Groups {
		for _, rule := range g.Rules {
			if rule.Record != "" {
				metrics[rule.Record] = true
			}
			queries = append(queries, rule.Expr)
			texts = append(texts, rule.Annotations["summary"], rule.Annotations["description"])
		}
	}
	for _, p := range readDashboard(t).Panels {
		for _, q := range p.Targets {
			queries, texts = append(queries, q.Expr), append(texts, q.LegendFormat)
		}
	}
	for _, q := range queries {
		names := metricName.FindAllString(q, -1)
		assert.NotEmpty(t, names, q)
		for _, name := range names {
			assert.Contains(t, metrics, name, q)
		}
		for _, g := range grouping.FindAllStringSubmatch(q, -1) {
			for _, name := range word.FindAllString(g[1], -1) {
				assert.Contains(t, labels, name, q)
			}
		}
	}
	for _, line := range texts {
		for _, l := range legend.FindAllStringSubmatch(line, -1) {
			assert.Contains(t, labels, l[1], line)
		}
	}
}

// TestPanelsDoNotOverlap goes by Grafana's grid of 24 columns.
func TestPanelsDoNotOverlap(t *testing.T) {
	d := readDashboard(t)
	taken, ids := make(map[[2]int]string), make(map[int]bool)
	for _, p := range d.Panels {
		assert.False(t, ids[p.ID], "panel %d is there twice", p.ID)
		ids[p.ID] = true
		assert.NotEmpty(t, p.Targets, p.Title)
		at := p.GridPos
		require.True(t, at.W > 0 && at.H > 0 && at.X >= 0 && at.X+at.W <= 24, p.Title)
		for x := at.X; x < at.X+at.W; x++ {
			for y := at.Y; y < at.Y+at.H; y++ {
				assert.Empty(t, taken[[2]int{x, y}], "%s covers it", p.Title)
				taken[[2]int{x, y}] = p.Title
			}
		}
		for _, q := range p.Targets {
			assert.Equal(t, target{"prometheus", "${DS_PROMETHEUS}"}, q.Datasource, p.Title)
		}
	}
}
