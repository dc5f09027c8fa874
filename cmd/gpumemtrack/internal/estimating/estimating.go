// Package estimating has the command that estimates what a model needs. It turns flags (flags.go) into
// options of package estimate (options.go), estimates a model by its name or its files (model.go), and prints
// the report (estimated.go) and what would make the model fit (remedies.go). All values come from package
// estimate.
package estimating

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
	"github.com/gpumemtrack/gpumemtrack/internal/inputs"
)

// Command is gpumemtrack estimate.
func Command(a *cli.App) *cobra.Command {
	var o estimateOptions
	cmd := &cobra.Command{
		Use:   "estimate FILE|MODEL",
		Short: "Estimate the GPU memory that a model needs",
		Long:  help,
		Example: `  gpumemtrack estimate resnet50 --train --batch 32
  gpumemtrack estimate llama-3-8b --lora 16 --qlora --seq 2048 --fits 4090
  gpumemtrack estimate model.gguf --engine llama.cpp --seq 8192`,
		Args: cli.Exactly(1, "a model's file, or a known model"),
		ValidArgsFunction: func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
			others := func(name string) bool { return !strings.HasPrefix(name, begun) }
			return slices.DeleteFunc(zoo.Names(), others), cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd.Flags().Changed); err != nil {
				return err
			}
			if err := o.engine.choose(cmd.Flags().Changed, &o.serve, &o.train); err != nil {
				return err
			}
			o.inferMode(cmd.Flags().Changed)
			o.engine.apply(cmd.Flags(), o.run())
			if o.engine.sets("kv-unified") || cmd.Flags().Changed("kv-unified") {
				o.llama.unified = &o.llama.oneCache
			}
			o.args, o.flagSet, o.parsed = a.Args, cmd.Flags(), &o
			if asked, err := askedPool(o, cmd.Flags().Changed); err != nil {
				return err
			} else if asked {
				return inFlags(runPool(a, args[0], o))
			}
			return inFlags(runEstimate(a, args[0], o))
		},
	}
	o.flags(cmd)
	o.trainingFlags(cmd)
	o.servingFlags(cmd)
	o.fittingFlags(cmd)
	o.engine.flags(cmd)
	o.training.flags(cmd)
	o.loss.flags(cmd)
	o.parallel.flags(cmd)
	o.llama.flags(cmd)
	o.pool.flags(cmd)
	cmd.Flags().SetNormalizeFunc(byEngineName)
	o.images.flags(cmd)
	o.sounds.flags(cmd)
	completions(cmd)
	cli.AddInputFlagsOf(a, cmd, "measured", inputs.Measured)
	cli.Replaced(cmd, "llama-cpp", "--engine llama.cpp")
	for name, instead := range namedElsewhere {
		cli.Replaced(cmd, name, instead)
	}
	cmd.AddCommand(listCommand(a))
	addTopics(a, cmd)
	return cmd
}

func runEstimate(a *cli.App, name string, o estimateOptions) error {
	options, err := o.options()
	if err != nil {
		return err
	}
	e := estimated{options: o}
	cli.LimitMemory(a)
	if err := cli.CheckFile(a, name); err != nil {
		return err
	}
	report, err := o.report(name, options, &e)
	if alone, ok := errors.AsType[*cacheAlone](err); ok {
		return writeCacheAlone(a, alone, o)
	}
	switch {
	case err != nil:
	case o.searches() > 0 && o.fits > 0 && len(report.Missing) > 0:
		return cannotKnow(name, o.budget(), report)
	case o.maxBatch || o.maxContext:
		report, err = o.largest(name, options, report, &e)
	case o.training.minReplicas:
		report, e.Replicas, err = o.fewestReplicas(name, options)
	case o.llama.maxLayers:
		report, err = o.mostLayers(name, options, report)
	}
	if err != nil {
		return err
	}
	if e.alone != nil && o.measured == "" {
		return writeWeightsAlone(a, newWeightsAlone(e.alone, report, o), o)
	}
	e.Schema, e.Mode, e.Report, e.Peak = estimateSchema, o.mode(), report, report.Memory().Peak.Bytes
	e.note(name)
	e.Upper = e.Report.Memory().Peak.Upper
	shown := report.Memory().Footprint
	e.Allocated, e.AllocatedUpper, e.ReservedUpper = shown.Allocated.Bytes, shown.Allocated.Upper, shown.Reserved.Upper
	e.Reserved, e.Device, e.DeviceUpper, e.Needs = shown.Reserved.Bytes, shown.Device.Bytes, shown.Device.Upper, report.Needs()
	e.Host, e.GPULayers = e.Report.Memory().Host, report.GPULayers
	if o.measured != "" {
		if e.Measured, err = e.compareRun(a); err != nil {
			return err
		}
	}
	if o.fits > 0 {
		if e.judge(); e.Fits != nil && !*e.Fits && len(report.Missing) == 0 && len(report.Inputs) > 0 && o.searches() == 0 {
			e.Remedies, e.Nearest = e.remedies(name)
		}
	}
	if o.json {
		err = json.NewEncoder(a.Stdout).Encode(e)
	} else {
		e.write(a.Stdout)
	}
	if err != nil {
		return err
	}
	return e.verdict(name)
}
