package family

// GLM4MoELite is DeepSeek V3 with a list of which layers have a mixture (GLM-4.7-Flash,
// modeling_glm4_moe_lite.py).
var GLM4MoELite = &Family{
	Name:  "GLM-4.7-Flash",
	Types: []Type{{Name: "glm4_moe_lite", Base: "Glm4MoeLiteModel", Read: readGLM4MoELite}},
}

func readGLM4MoELite(c *Config, a *Model) {
	deepSeekV3(c, a, 1)
	c.sparseLayers(a)
}
