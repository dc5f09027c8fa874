//go:build ignore

// Command count reads what go test -json prints. It shows the packages, the
// tests that failed with their output, and why tests were skipped, and appends one
// word for each test to a file.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"
)

// event is one line of go test -json; see go doc test2json.
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Output     string
}

func main() {
	results, err := os.OpenFile(os.Args[1], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		log.Fatal(err)
	}
	output := make(map[string]*strings.Builder) // by package and test
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Println(lines.Text()) // of the program that runs go test
			continue
		}
		key := e.Package + e.ImportPath + " " + e.Test
		if output[key] == nil {
			output[key] = new(strings.Builder)
		}
		switch e.Action {
		case "output", "build-output":
			output[key].WriteString(e.Output)
		case "pass", "fail", "skip":
			if e.Action == "fail" && e.Test == "" { // tests that had not ended: one of them ended the program
				for of, text := range output {
					if strings.HasPrefix(of, e.Package+" Test") {
						fmt.Print(text)
					}
				}
			}
			show(e, output[key].String())
			delete(output, key)
			if e.Test != "" {
				fmt.Fprintln(results, e.Action)
			}
		case "build-fail":
			fmt.Print(output[key])
		}
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
	if err := results.Close(); err != nil {
		log.Fatal(err)
	}
}

// show prints what a person wants to know of a test or a package that ended.
func show(e event, output string) {
	switch {
	case e.Action == "fail":
		fmt.Print(output)
	case e.Test == "":
		if !strings.Contains(output, "[no test files]") {
			fmt.Print(lastLine(output))
		}
	case e.Action == "skip":
		fmt.Printf("skipped: %s: %s", e.Test, reason(output))
	}
}

// reason is the line before "--- SKIP", which says why.
func reason(output string) string {
	why := "no reason given\n"
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "---") && !strings.HasPrefix(line, "===") {
			why = line + "\n"
		}
	}
	return why
}

func lastLine(output string) string {
	last := ""
	for line := range strings.Lines(output) {
		last = line
	}
	return last
}
