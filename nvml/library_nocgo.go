//go:build !cgo && linux

package nvml

func load(path string) (api, map[string]bool, error) { return loadDirectly(path) }
