//go:build ignore

// Command count reads what go test -json prints. It shows the packages, the tests that failed with their output, and why
// tests were skipped. With the name of a file it appends one word for each test to that. Without one it says in its last
// line, all together, why tests were skipped.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"log"
	"maps"
	"os"
	"regexp"
	"slices"
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
	results := os.Stdout
	if len(os.Args) > 1 {
		file, err := os.OpenFile(os.Args[1], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			log.Fatal(err)
		}
		results = file
	}
	skipped := make(map[string]int)             // by the reason
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
			switch {
			case results != os.Stdout:
				if e.Test != "" {
					fmt.Fprintln(results, e.Action)
				}
				show(e, output[key].String())
			case e.Action == "skip" && e.Test != "":
				skipped[place.ReplaceAllString(strings.TrimSpace(reason(output[key].String())), "")]++
			default:
				show(e, output[key].String())
			}
			delete(output, key)
		case "build-fail":
			fmt.Print(output[key])
		}
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
	if results == os.Stdout {
		fmt.Println(summary(skipped))
		return
	}
	if err := results.Close(); err != nil {
		log.Fatal(err)
	}
}

// place is where a test wrote a line.
var place = regexp.MustCompile(`^\w+\.go:\d+: `)

// summary says how many tests were skipped for each reason, the most frequent first.
func summary(skipped map[string]int) string {
	all, why := 0, slices.SortedFunc(maps.Keys(skipped), func(a, b string) int {
		return cmp.Or(skipped[b]-skipped[a], strings.Compare(a, b))
	})
	for i, reason := range why {
		all += skipped[reason]
		why[i] = fmt.Sprintf("%s (%d)", reason, skipped[reason])
	}
	if all == 0 {
		return "0 skipped"
	}
	return fmt.Sprintf("%d skipped: %s", all, strings.Join(why, "; "))
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
	default:
		for _, line := range coverage.FindAllStringSubmatch(output, -1) {
			fmt.Println(line[1])
		}
	}
}

// coverage is a line in which a test logs how much it covers.
var coverage = regexp.MustCompile(`(?m)^ *\w+\.go:\d+: (coverage of .*)$`)

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
