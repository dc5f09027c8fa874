package labels_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/tracker/export/internal/labels"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func TestOriginLabels(t *testing.T) {
	for _, o := range []snapshot.Origin{
		{}, {Rank: new(0)}, {Host: "node-1", PID: 7, Program: "train", Rank: new(3), WorldSize: 8}, {PID: 7, Container: "docker 0123456789ab"},
	} {
		found := maps.Collect(labels.OfOrigin(o))
		assert.NotContains(t, slices.Collect(maps.Values(found)), "", "what is unknown has no label")
		assert.Equal(t, o, labels.Origin(func(name string) string { return found[name] }))
	}
	for range labels.OfOrigin(snapshot.Origin{Host: "a", PID: 1}) {
		break
	}
	assert.Zero(t, labels.Origin(func(name string) string {
		return map[string]string{"rank": "first", "pid": "-3", "world_size": "1e9"}[name]
	}))
}
