// Package commands lists the commands of gpumemtrack. Package inspect has those that read files, watch those
// that follow a program, top those that show what happens now, estimating and demo one each, and cli those
// about the program itself.
package commands

import (
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/demo"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/estimating"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/inspect"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/top"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/watch"
)

// All lists all commands. To add one, add a line here and a file in the package where it belongs.
var All = []cli.Command{
	{Name: "record", New: watch.Record},
	{Name: "attach", New: watch.Attach},
	{Name: "sensors", New: top.Sensors},
	{Name: "top", New: top.Command},
	{Name: "chart", New: inspect.Chart},
	{Name: "estimate", New: estimating.Command},
	{Name: "show", New: inspect.Show},
	{Name: "diff", New: inspect.Diff},
	{Name: "leaks", New: inspect.Leaks},
	{Name: "layers", New: inspect.Layers},
	{Name: "convert", New: inspect.Convert},
	{Name: "replay", New: inspect.Replay},
	{Name: "explain", New: inspect.Explain},
	{Name: "demo", New: demo.Command},
	{Name: "completion", New: cli.Completion},
	{Name: "version", New: cli.Version},
}
