package cli

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// Build says which version of the program this is. A field is empty if it is not known.
type Build struct {
	Version string // a tag, such as v0.1.0, or Go's name for a commit without one
	Commit  string // the full hash
	Date    string // of the commit, as in RFC 3339
}

// release is what the linker set: see SetRelease.
var release Build

// SetRelease sets what the linker knows of a release, before Run. Where a field is empty, the
// build information of the program answers.
func SetRelease(b Build) { release = b }

// Version is gpumemtrack version.
func Version(a *App) *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print which version this is, and how it was built",
		Long: `Print which version this is: its tag, its commit and the date of that, as far as
they are known, and how it was built.

--json prints one object: "schema", "version", "commit", "date", "modified" (the
build had changes that are not in the commit), "go" and "platform". What is not
known is null.`,
		Example: `  gpumemtrack version
  gpumemtrack version --json`,
		Args: NoArgs,
		RunE: func(*cobra.Command, []string) error { return writeVersion(a, asJSON) },
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func writeVersion(a *App, asJSON bool) error {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo)
	}
	v := versionOf(release, info)
	if asJSON {
		return WriteJSON(a.Stdout, v)
	}
	_, err := fmt.Fprintln(a.Stdout, v)
	return err
}

// programVersion is what version --json prints.
type programVersion struct {
	Schema   string  `json:"schema"`
	Version  *string `json:"version"`
	Commit   *string `json:"commit"`
	Date     *string `json:"date"`
	Modified *bool   `json:"modified"`
	Go       string  `json:"go"`
	Platform string  `json:"platform"`
}

// versionOf prefers what the linker set to the build information.
func versionOf(release Build, info *debug.BuildInfo) programVersion {
	noted := make(map[string]string)
	for _, s := range info.Settings {
		noted[s.Key] = s.Value
	}
	module := info.Main.Version
	if module == "(devel)" {
		module = ""
	}
	v := programVersion{
		Schema: "gpumemtrack.version/1", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Version: known(cmp.Or(release.Version, module)),
		Commit:  known(cmp.Or(release.Commit, noted["vcs.revision"])),
		Date:    known(cmp.Or(release.Date, noted["vcs.time"])),
	}
	if modified, ok := noted["vcs.modified"]; ok {
		is := modified == "true"
		v.Modified = &is
	}
	return v
}

// known returns a text, or nil if there is none.
func known(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// String returns "gpumemtrack v0.1.0 commit 0123456789ab of 2026-11-22, go1.26.8 linux/amd64".
func (v programVersion) String() string {
	words := []string{ProgramName, "devel"}
	if v.Version != nil {
		words[1] = *v.Version
	}
	if v.Commit != nil {
		words = append(words, "commit "+(*v.Commit)[:min(12, len(*v.Commit))])
	}
	if v.Date != nil {
		day, _, _ := strings.Cut(*v.Date, "T")
		words = append(words, "of "+day)
	}
	if v.Modified != nil && *v.Modified {
		words = append(words, "with changes")
	}
	return fmt.Sprintf("%s, %s %s", strings.Join(words, " "), v.Go, v.Platform)
}
