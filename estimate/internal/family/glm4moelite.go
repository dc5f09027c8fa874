package family

import "github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"

// GLM4MoELite is DeepSeek V3 with a list of which layers have a mixture (GLM-4.7-Flash,
// modeling_glm4_moe_lite.py).
var GLM4MoELite = &Family{
	Name:  "GLM-4.7-Flash",
	Types: []Type{{Name: "glm4_moe_lite", Base: "Glm4MoeLiteModel", Read: readGLM4MoELite}},
}

func readGLM4MoELite(c *Config, a *Model) {
	a.Router, a.UnscaledTopK = layer.SigmoidRouter, !c.Flag("norm_topk_prob", true)
	groups(c, a)
	deepSeek(c, a, 1)
	c.sparseLayers(a)
}
