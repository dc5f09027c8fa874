package quantconfig

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each pattern is compared with each module, so that a config with very many would run for minutes.
func TestTooManyPatternsAreNotRead(t *testing.T) {
	list := func(form string) []string {
		all := make([]string, maxPatterns+1)
		for i := range all {
			all[i] = fmt.Sprintf(form, i)
		}
		return all
	}
	group := func(i int) map[string]any {
		return map[string]any{"targets": []string{fmt.Sprintf("re:a%d", i)}, "weights": map[string]any{"num_bits": 8, "type": "float"}}
	}
	groups := map[string]any{}
	for i := range maxPatterns {
		groups[fmt.Sprint(i)] = group(i)
	}
	for name, config := range map[string]map[string]any{
		"regular expressions": {"quant_method": "fp8", "modules_to_not_convert": list("a.*%d$")},
		"ignored":             {"quant_method": "compressed-tensors", "ignore": list("re:a.*%d")},
		"wildcards":           {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": list("a*%d")},
		"groups":              {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": groups},
	} {
		text, err := json.Marshal(config)
		require.NoError(t, err)
		c, err := Read(text)
		require.NoError(t, err, name)
		assert.Contains(t, c.Unread, "more than 256 patterns", name)
		assert.Empty(t, c.rules, name)
	}
	repeated, err := json.Marshal(map[string]any{"quant_method": "fp8", "modules_to_not_convert": list("a.{0,900}%d")})
	require.NoError(t, err)
	c, err := Read(repeated)
	require.NoError(t, err)
	assert.Contains(t, c.Unread, "instructions")
	plain, err := json.Marshal(map[string]any{"quant_method": "fp8", "modules_to_not_convert": list("a.%d")})
	require.NoError(t, err)
	c, err = Read(plain)
	require.NoError(t, err)
	assert.Empty(t, c.Unread, "names are looked up")
}
