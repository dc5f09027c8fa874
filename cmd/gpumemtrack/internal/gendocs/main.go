// Command gendocs writes the man pages of gpumemtrack and its completions for shells, as packages install
// them:
//
//	go run ./cmd/gpumemtrack/internal/gendocs [-version VERSION] DIR
//
// makes DIR/man and DIR/completions. The pages are dated by SOURCE_DATE_EPOCH if it is set, so that a release
// can be rebuilt byte for byte, and otherwise by today.
package main

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/commands"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("gendocs: ")
	version := flag.String("version", "", "the `VERSION` that the pages are of")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: gendocs [-version VERSION] DIR")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	date, err := sourceDate(os.Getenv("SOURCE_DATE_EPOCH"), time.Now())
	if err != nil {
		log.Fatal(err)
	}
	if err := writeMan(filepath.Join(flag.Arg(0), "man"), *version, date); err != nil {
		log.Fatal(err)
	}
	if err := writeCompletions(filepath.Join(flag.Arg(0), "completions")); err != nil {
		log.Fatal(err)
	}
}

// sourceDate returns the date of the pages: see https://reproducible-builds.org/specs/source-date-epoch.
func sourceDate(epoch string, now time.Time) (time.Time, error) {
	if epoch == "" {
		return now.UTC(), nil
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %w: want seconds since 1970", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

func writeCompletions(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root := new(cli.App).Root(commands.All...)
	for name, write := range map[string]func(path string) error{
		cli.ProgramName + ".bash": func(path string) error { return root.GenBashCompletionFileV2(path, true) },
		"_" + cli.ProgramName:     root.GenZshCompletionFile,
		cli.ProgramName + ".fish": func(path string) error { return root.GenFishCompletionFile(path, true) },
		cli.ProgramName + ".ps1":  root.GenPowerShellCompletionFileWithDesc,
	} {
		if err := write(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func writeMan(dir, version string, date time.Time) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	pages, err := manPages(version, date)
	if err != nil {
		return err
	}
	for name, page := range pages {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(page), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// manPages returns the man page of each command, by the name of its file.
func manPages(version string, date time.Time) (map[string]string, error) {
	a := new(cli.App)
	root := a.Root(commands.All...)
	root.InitDefaultHelpCmd()
	pages := make(map[string]string)
	var add func(cmd *cobra.Command) error
	add = func(cmd *cobra.Command) error {
		prepare(a, cmd)
		header := &doc.GenManHeader{Section: "1", Date: &date, Manual: "User Commands", Source: strings.TrimSpace(cli.ProgramName + " " + version)}
		var page bytes.Buffer
		if err := doc.GenMan(cmd, header, &page); err != nil {
			return err
		}
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".1"
		text := strings.Replace(page.String(), date.Format("Jan 2006"), date.Format(time.DateOnly), 1) // in the title
		pages[name] = option.ReplaceAllString(text, ".TP\n$1\n")
		for _, sub := range cmd.Commands() {
			if !sub.Hidden {
				if err := add(sub); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return pages, add(root)
}

// option matches how cobra/doc begins an option: as a paragraph, with an equals sign even if it has no value,
// and its meaning behind a tab. Man pages have tagged paragraphs for that.
var option = regexp.MustCompile(`(?m)^(?:\.PP\n)?((?:\\fB-[a-z]\\fP, )?\\fB--[a-z-]+\\fP(?:=\S+|\[=\S+\])?)=?\n\t`)

// prepare makes the texts of a command fit cobra/doc, which takes them for Markdown, knows no topics, and
// writes the default of each flag where the name of its value should stand.
func prepare(a *cli.App, cmd *cobra.Command) {
	cmd.DisableAutoGenTag = true // a line about cobra
	cmd.Long = markdown(cmp.Or(cmd.Long, cmd.Short+"."))
	if !cmd.HasParent() {
		cmd.Long += "\n# COMMANDS\n" + markdown(list(cmd.Commands()))
	}
	for _, topic := range a.Topics(cmd) {
		cmd.Long += fmt.Sprintf("\n# %s\n%s", strings.ToUpper(topic.Title), markdown(textOf(topic)))
	}
	if cmd.HasParent() {
		cmd.SetHelpCommand(&cobra.Command{Hidden: true}) // only the root has a command help
	}
	cmd.InitDefaultHelpFlag()
	cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		name, usage := pflag.UnquoteUsage(f)
		if f.Value.Type() == "bool" {
			f.NoOptDefVal = ""
		}
		if !slices.Contains([]string{"", "0", "0s", "false", "[]"}, f.DefValue) {
			usage += fmt.Sprintf(" (default %s)", f.DefValue)
		}
		f.DefValue, f.Usage, f.Value = name, escape(usage), untyped{f.Value}
	})
}

// list lists commands, a line each.
func list(all []*cobra.Command) string {
	var b strings.Builder
	for _, cmd := range all {
		fmt.Fprintf(&b, "  %-11s %s\n", cmd.Name(), cmd.Short)
	}
	return b.String()
}

// textOf returns what a topic says, and which options it is about.
func textOf(topic cli.Topic) string {
	var parts []string
	if topic.Text != nil {
		parts = append(parts, topic.Text())
	}
	if len(topic.Flags) > 0 {
		parts = append(parts, "Options: --"+strings.Join(topic.Flags, ", --")+".")
	}
	return strings.Join(parts, "\n\n")
}

// untyped is the value of a flag that cobra/doc does not know for a string, which it would put in quotes.
type untyped struct{ pflag.Value }

func (untyped) Type() string { return "" }

// markdown makes Markdown of a help text: lines that are indented stay as they are.
func markdown(text string) string {
	var b strings.Builder
	code := false
	for line := range strings.Lines(text + "\n") {
		indented := strings.HasPrefix(line, " ")
		if indented != code && (indented || strings.TrimSpace(line) != "") {
			b.WriteString("\n```\n")
			code = indented
		}
		if code {
			b.WriteString(line)
		} else {
			b.WriteString(escape(line))
		}
	}
	if code {
		b.WriteString("```\n")
	}
	return b.String()
}

// escape escapes what Markdown takes for its own in a text.
func escape(text string) string { return special.ReplaceAllString(text, `\$0`) }

var special = regexp.MustCompile("[\\\\*_<>`\\[\\]|]")
