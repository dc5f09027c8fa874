package estimating

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/checkpoint"
	"github.com/gpumemtrack/gpumemtrack/estimate/llamacpp"
)

// draftOptions say how llama.cpp drafts tokens.
type draftOptions struct {
	most  int    // tokens at a time; 0 means usualDrafts where something drafts
	own   bool   // blocks of the model itself draft
	model string // the file of another model that does
}

// usualDrafts is the default of llama.cpp's --spec-draft-n-max (common/common.h, common_params_speculative).
const usualDrafts = 16

// draftFlags lists the flags of drafts.
var draftFlags = []string{"draft-mtp", "draft-max", "model-draft"}

func (o *draftOptions) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&o.own, "draft-mtp", false, "llama.cpp with the model's own blocks that predict further tokens, its --spec-type draft-mtp")
	flags.IntVar(&o.most, "draft-max", 0, "llama.cpp with `N` tokens drafted at a time, its --spec-draft-n-max (default 16)")
	flags.StringVar(&o.model, "model-draft", "", "llama.cpp with the model in `FILE` too, which drafts tokens")
}

// apply adds what drafts to a server whose cache is this. It returns a note, or "".
func (o draftOptions) apply(by *llamacpp.Server, cache estimate.KVConfig) (string, error) {
	switch {
	case o.most < 0:
		return "", cli.UsageError("estimate: --draft-max %d: want 1 or more", o.most)
	case !o.own && o.model == "" && o.most == 0:
		return "", nil
	case !o.own && o.model == "":
		return "", cli.UsageError("estimate: --draft-max: nothing drafts: give --draft-mtp or --model-draft")
	}
	note := ""
	if by.Drafts = o.most; o.most == 0 {
		by.Drafts = usualDrafts
		note = fmt.Sprintf("%d tokens are drafted at a time: --draft-max says how many", by.Drafts)
	}
	by.Predicts = o.own
	if o.model == "" {
		return note, nil
	}
	file, err := checkpoint.ReadFile(o.model)
	if err != nil {
		return "", err
	}
	own, err := file.Cache(cache.Batch, cache.ContextLength)
	if err != nil {
		return "", fmt.Errorf("--model-draft: %w", err)
	}
	served, err := file.Served(own, llamacpp.Server{Slots: by.Slots, Batch: by.Batch, FlashAttention: by.FlashAttention, Backend: by.Backend, Build: by.Build})
	if err != nil {
		return "", fmt.Errorf("--model-draft: %w", err)
	}
	r, err := file.Report(served)
	if err != nil {
		return "", fmt.Errorf("--model-draft: %w", err)
	}
	by.Draft = r.Inference.Peak.Bytes
	return note, nil
}
