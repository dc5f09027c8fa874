//go:build cuda && cgo

package main

import (
	"cmp"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"gorgonia.org/cu"
)

// driver says which driver answers, and whether it has all that gorgonia.org/cu
// links: a function that it lacks ends the program when it is called.
func driver(w io.Writer, _ *view) error {
	fmt.Fprintf(w, "CUDA version of the driver\t%d\n", cu.Version())
	library, err := loaded("libcuda.so")
	if err != nil {
		return err
	}
	has, err := exported(library)
	if err != nil {
		return err
	}
	linked, err := imported("/proc/self/exe")
	if err != nil {
		return err
	}
	missing := slices.DeleteFunc(slices.Clone(linked), func(function string) bool { return has[function] })
	fmt.Fprintf(w, "its library\t%s\n", library)
	fmt.Fprintf(w, "functions that gorgonia.org/cu links\t%d\n", len(linked))
	fmt.Fprintf(w, "of which the library lacks\t%s\n", cmp.Or(strings.Join(missing, " "), "none"))
	return nil
}

// loaded is the file of a library of this process, whose name begins so.
func loaded(name string) (string, error) {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return "", err
	}
	path := regexp.MustCompile(`(?m)/\S*/` + regexp.QuoteMeta(name) + `\S*$`).Find(maps)
	if path == nil {
		return "", fmt.Errorf("no %s is loaded", name)
	}
	return string(path), nil
}

// imported lists the driver's functions that a program links.
func imported(program string) (functions []string, err error) {
	file, err := elf.Open(program)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	symbols, err := file.ImportedSymbols()
	ofDriver := regexp.MustCompile(`^cu[A-Z]`)
	for _, s := range symbols {
		if ofDriver.MatchString(s.Name) {
			functions = append(functions, s.Name)
		}
	}
	return functions, err
}

func exported(library string) (map[string]bool, error) {
	file, err := elf.Open(library)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	symbols, err := file.DynamicSymbols()
	has := make(map[string]bool)
	for _, s := range symbols {
		has[s.Name] = has[s.Name] || s.Section != elf.SHN_UNDEF
	}
	return has, err
}
