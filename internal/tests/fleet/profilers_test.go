package fleet_test

import (
	"testing"

	"github.com/google/pprof/profile"
	"github.com/grafana/alloy/syntax/ast"
	"github.com/grafana/alloy/syntax/parser"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// profiled returns the types of values of the profile at a path of a program.
func profiled(t *testing.T, path string) (types []string) {
	t.Helper()
	p, err := profile.Parse(served(t, program(t), path).Body)
	require.NoError(t, err)
	require.NotEmpty(t, p.Sample)
	for _, v := range p.SampleType {
		types = append(types, v.Type+" "+v.Unit)
	}
	return types
}

// attributes returns the attributes of a block and of those in it, by path.
func attributes(path string, body ast.Body, into map[string]string) {
	for _, s := range body {
		switch s := s.(type) {
		case *ast.AttributeStmt:
			if v, ok := s.Value.(*ast.LiteralExpr); ok {
				into[path+s.Name.Name] = v.Value
			}
		case *ast.BlockStmt:
			name := path
			for _, n := range s.Name {
				name += n + "."
			}
			attributes(name, s.Body, into)
		}
	}
}

// TestPyroscopePullsTheProfile reads the file with Alloy's own parser, and asks for what it
// names. Alloy subtracts the two values of the profile "memory" that only rise.
func TestPyroscopePullsTheProfile(t *testing.T) {
	file, err := parser.ParseFile("pyroscope.alloy", text(t, "pyroscope.alloy"))
	require.NoError(t, err)
	set := make(map[string]string)
	attributes("", file.Body, set)
	const profiles = "pyroscope.scrape.profiling_config.profile."
	for _, other := range []string{"block", "goroutine", "mutex", "process_cpu"} {
		assert.Equal(t, "false", set[profiles+other+".enabled"], "%s would be asked of a path that is not there", other)
	}
	assert.Equal(t, "true", set[profiles+"memory.enabled"])
	assert.Equal(t, "false", set[profiles+"memory.delta"])
	path := set[profiles+"memory.path"]
	require.Len(t, path, len(`"/debug/gpumem/profile"`))
	assert.Equal(t, []string{"alloc_objects count", "alloc_space bytes", "inuse_objects count", "inuse_space bytes"}, profiled(t, path[1:len(path)-1]))
}

// TestParcaPullsTheProfile asks for what parca.yaml names, and finds the values that it keeps.
func TestParcaPullsTheProfile(t *testing.T) {
	type pprof struct {
		Enabled        bool
		Path           string
		KeepSampleType []struct{ Type, Unit string } `yaml:"keep_sample_type"`
	}
	var c struct {
		ObjectStorage struct {
			Bucket struct {
				Type   string
				Config struct{ Directory string }
			}
		} `yaml:"object_storage"`
		ScrapeConfigs []struct {
			JobName         string                       `yaml:"job_name"`
			ScrapeInterval  string                       `yaml:"scrape_interval"`
			StaticConfigs   []struct{ Targets []string } `yaml:"static_configs"`
			ProfilingConfig struct {
				PprofConfig map[string]pprof `yaml:"pprof_config"`
			} `yaml:"profiling_config"`
		} `yaml:"scrape_configs"`
	}
	readYAML(t, "parca.yaml", &c)
	require.Len(t, c.ScrapeConfigs, 1)
	profiles := c.ScrapeConfigs[0].ProfilingConfig.PprofConfig
	for _, other := range []string{"memory", "block", "goroutine", "mutex", "process_cpu"} {
		assert.Contains(t, profiles, other)
		assert.False(t, profiles[other].Enabled, "%s would be asked of a path that is not there", other)
	}
	ours := profiles["gpumem"]
	require.True(t, ours.Enabled)
	types := profiled(t, ours.Path)
	require.Len(t, ours.KeepSampleType, 2)
	for _, keep := range ours.KeepSampleType {
		assert.Contains(t, types, keep.Type+" "+keep.Unit)
	}
}
