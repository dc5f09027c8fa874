// Package zoo has well-known models as layers of package estimate.
//
//	m, err := zoo.ByName("resnet50")
//	r, err := estimate.Model(m.Layers, m.Input, estimate.Train(estimate.Adam))
//
// Modules have the names that torchvision and transformers give them, and each
// model has exactly the published number of parameters. Each call builds a new
// model, so that a caller may change them; all functions may be called from
// several goroutines.
package zoo
