package families

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// row is what defaults.json says about a type.
type row struct {
	Defaults, Saved map[string]any
	Names           map[string]string
	Parts           map[string]struct {
		Type string
		With map[string]any
	}
}

func rows(t *testing.T) map[string]row {
	text, err := os.ReadFile("../family/defaults.json")
	require.NoError(t, err)
	var file struct{ Types map[string]row }
	require.NoError(t, json.Unmarshal(text, &file))
	return file.Types
}

// saved returns the config.json of a type's defaults as save_pretrained writes it.
func saved(of map[string]row, name string) map[string]any {
	r := of[name]
	config := map[string]any{"model_type": name, "transformers_version": "5.24.0"}
	for key, value := range r.Defaults {
		if stored, ok := r.Names[key]; ok {
			key = stored
		}
		config[key] = value
	}
	maps.Copy(config, r.Saved)
	for key, part := range r.Parts {
		within := saved(of, part.Type)
		maps.Copy(within, part.With)
		config[key] = within
	}
	return config
}

func read(t *testing.T, config map[string]any) (family.Model, error) {
	text, err := json.Marshal(config)
	require.NoError(t, err)
	name, _ := config["model_type"].(string)
	if name == "" {
		name, _ = config["_class_name"].(string)
	}
	return Table().ReadConfig(name, text)
}

// TestDefaultsAreReadWhole: a file that changes nothing leaves nothing to name.
func TestDefaultsAreReadWhole(t *testing.T) {
	of, n := rows(t), 0
	for _, name := range Table().Types() {
		if _, ok := of[name]; !ok {
			continue
		}
		if m, err := read(t, saved(of, name)); err == nil {
			assert.Empty(t, m.Unread.Keys, name)
			n++
		}
	}
	assert.Greater(t, n, 80)
}

// TestPublishedConfigsAreReadWhole: so does each published model, apart from keys that this list has.
func TestPublishedConfigsAreReadWhole(t *testing.T) {
	named := map[string]bool{
		"vision_config.out_hidden_size": true, "vision_config.hidden_size": true, // the merger's width, which the text gives
	}
	n := 0
	for _, file := range []string{"../../zoo/models.json", "../../zoo/testdata/others.json"} {
		text, err := os.ReadFile(filepath.FromSlash(file))
		require.NoError(t, err)
		var models map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(text, &models))
		for repository, model := range models {
			var of struct{ Config map[string]any }
			if json.Unmarshal(model, &of) != nil || of.Config == nil {
				continue // the version of transformers
			}
			m, err := read(t, of.Config)
			require.NoError(t, err, repository)
			assert.Empty(t, slices.DeleteFunc(m.Unread.Keys, func(key string) bool { return named[key] }), repository)
			n++
		}
	}
	assert.Greater(t, n, 200)
}

// TestKeysAreReadUnderEachName: transformers has one attribute under two names, and reads either.
func TestKeysAreReadUnderEachName(t *testing.T) {
	of, n := rows(t), 0
	for _, name := range Table().Types() {
		usual := saved(of, name)
		for alias, stored := range of[name].Names {
			for _, number := range []any{usual[stored], 2.0} {
				if _, ok := number.(float64); !ok || strings.HasSuffix(alias, "_token_id") {
					continue
				}
				one, other := maps.Clone(usual), maps.Clone(usual)
				one[stored] = number
				delete(other, stored)
				other[alias] = number
				a, errA := read(t, one)
				b, errB := read(t, other)
				a.Stored, b.Stored = nil, nil // functions are never equal
				assert.Equal(t, len(a.Unread.Keys), len(b.Unread.Keys), "%s: %s and %s", name, alias, stored)
				a.Unread, b.Unread = setting.Unread{}, setting.Unread{}
				assert.Equal(t, a, b, "%s: %s and %s", name, alias, stored)
				assert.Equal(t, errA == nil, errB == nil, "%s: %s and %s: %v, %v", name, alias, stored, errA, errB)
				n++
			}
		}
	}
	assert.Greater(t, n, 50)
}

func TestUnreadKeysAreNamed(t *testing.T) {
	llama := func(changes map[string]any) map[string]any {
		config := saved(rows(t), "llama")
		maps.Copy(config, changes)
		return config
	}
	for _, c := range []struct {
		changes   map[string]any
		keys      []string
		foreign   int
		inference float64
		training  float64
	}{
		{map[string]any{"bos_token_id": 7, "rms_norm_eps": 1, "rope_theta": 5e5, "temperature": 0.6, "use_cache": false}, nil, 0, 0, 0},
		{map[string]any{"sliding_window": nil, "attention_window": 0, "layer_types": []string{"full_attention", "full_attention"}}, nil, 0, 0, 0},
		{map[string]any{"kv_channels": 64}, []string{"kv_channels"}, 1, 0, 0},
		{map[string]any{"attention_dropout": 0.1}, []string{"attention_dropout"}, 0, 0, 1},
		{map[string]any{"chunk_size_feed_forward": 8, "output_hidden_states": true}, []string{"output_hidden_states"}, 0, 1, 1},
	} {
		m, err := read(t, llama(c.changes))
		require.NoError(t, err)
		assert.Equal(t, c.keys, m.Unread.Keys)
		assert.Len(t, m.Unread.Foreign, c.foreign, c.changes)
		assert.Equal(t, [2]float64{c.inference, c.training}, [2]float64{m.Unread.Inference, m.Unread.Training}, c.changes)
	}
	for _, changes := range []map[string]any{
		{"per_layer_config": map[string]any{"1": map[string]any{"num_key_value_heads": 1}}},
		{"block_types": []string{"attention", "recurrent"}},
	} {
		_, err := read(t, llama(changes))
		assert.True(t, errors.Is(err, family.ErrUnknown), "%v: %v", changes, err)
	}
}
