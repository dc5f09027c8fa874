package serving_test

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/serving"
)

// architectures returns the first architecture of each model of testdata/configs.json.
func architectures(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile("testdata/configs.json")
	require.NoError(t, err)
	var configs map[string]struct{ Architectures []string }
	require.NoError(t, json.Unmarshal(data, &configs))
	first := map[string]string{}
	for model, c := range configs {
		if len(c.Architectures) > 0 {
			first[model] = c.Architectures[0]
		}
	}
	return first
}

// optional is a number, or 0 for an empty field.
func optional(t *testing.T, text string) int64 {
	t.Helper()
	if text == "" {
		return 0
	}
	return number(t, text)
}

// The planner of SGLang 0.5.23 itself gave these values, run on the CPU.
func TestSGLangPlansAsItself(t *testing.T) {
	classes := architectures(t)
	rows := table(t, "sglang.csv")
	require.Equal(t, 61, len(rows))
	for i, row := range rows {
		model := row["model"]
		t.Run(fmt.Sprintf("%d %s", i+2, model), func(t *testing.T) {
			s := serving.SGLang{
				Architecture: classes[model], Context: int(number(t, row["context"])), Page: int(number(t, row["page"])), Tensor: int(number(t, row["tensor"])),
				KVType: row["kv"], WindowRatio: float(t, row["window_ratio"]), StateRatio: float(t, row["state_ratio"]),
			}
			if s.Architecture == "Llama4ForCausalLM" { // the text part of the model that is served
				s.Architecture = "Llama4ForConditionalGeneration"
			}
			plan, err := s.Plan(specsOf(t, model), alloc.Bytes(number(t, row["budget"])))
			require.NoError(t, err)
			assert.InDelta(t, float(t, row["token_bytes"]), plan.BytesPerToken, 1e-6)
			assert.Equal(t, number(t, row["tokens"]), plan.Tokens)
			assert.Equal(t, optional(t, row["window_tokens"]), plan.WindowTokens)
			assert.EqualValues(t, optional(t, row["state_slot_bytes"]), plan.StateBytes)
			assert.EqualValues(t, optional(t, row["state_slots"]), plan.StateSlots)
			assert.EqualValues(t, number(t, row["max_requests"]), plan.MaxRequests)
			if most := row["max_requests_no_buffer"]; most != "" {
				s.StateBuffer = "no_buffer"
				plan, err = s.Plan(specsOf(t, model), alloc.Bytes(number(t, row["budget"])))
				require.NoError(t, err)
				assert.EqualValues(t, number(t, most), plan.MaxRequests)
			}
		})
	}
}
