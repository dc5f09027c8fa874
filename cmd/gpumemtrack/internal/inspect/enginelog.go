package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
	"github.com/gpumemtrack/gpumemtrack/internal/enginelog"
	"github.com/gpumemtrack/gpumemtrack/internal/inputs"
	"github.com/gpumemtrack/gpumemtrack/internal/oomtext"
	line "github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/internal/verdict"
)

// showEngine prints what the only argument of show says, if it is a log of an engine or a dump of XLA, and returns whether
// it is. Standard
// input can be read only once, so of that its beginning decides; a file is looked through.
func showEngine(a *cli.App, word string, o tableOptions) (bool, error) {
	if cli.IsURL(word) {
		return false, nil
	}
	in, err := cli.OpenInput(a, word)
	if err != nil {
		return false, nil //nolint:nilerr // a directory or a pattern; whoever reads it next says what is wrong
	}
	defer in.Close()
	defer func() {
		if word == "-" {
			a.Stdin = in.Reader
		}
	}()
	if in.Kind == inputs.XLADump {
		return true, showXLA(a, in, word, o.json)
	}
	if in.Kind != inputs.EngineLog && (in.Kind != inputs.Text || !in.CanReopen()) {
		return false, nil
	}
	in.Stream()
	reports, err := enginelog.Read(in.Reader)
	switch {
	case errors.Is(err, enginelog.ErrNoEngine):
		return false, nil
	case err != nil:
		return true, in.Error(err)
	}
	return true, writeEngines(a, in.Name, reports, nil, o.json)
}

// engineJSON is a report with what would help.
type engineJSON struct {
	*enginelog.Report
	Advice []string `json:"advice"`
}

// writeEngines prints what engines say. explain gives the error that stands in the log, which may have said nothing, and
// gets what would help.
func writeEngines(a *cli.App, name string, reports []*enginelog.Report, failed *oomtext.Report, asJSON bool) error {
	beside := besideEngines(failed, reports)
	says := beside != nil && beside.Said()
	if says && len(reports) > 0 {
		adviseEngine(beside, reports[len(reports)-1])
	}
	if asJSON {
		out := struct {
			Schema string          `json:"schema"`
			Runs   []engineJSON    `json:"runs"`
			Error  *oomtext.Report `json:"error,omitempty"`
		}{Schema: "gpumemtrack.engine/1"}
		for _, r := range reports {
			out.Runs = append(out.Runs, engineJSON{r, append([]string{}, r.Advice()...)})
		}
		if says {
			out.Error = beside
		}
		return cli.WriteJSON(a.Stdout, out)
	}
	for i, r := range reports {
		if i > 0 {
			fmt.Fprintln(a.Stdout)
		}
		fmt.Fprintf(a.Stdout, "%s, line %d of %s\n", engineTitle(r), r.Line, line.Line(name))
		writeEngine(a, r, failed != nil)
		if command := besideEstimate(r, name); failed != nil && command != "" {
			fmt.Fprintf(a.Stdout, "Beside the estimate: %s\n", command)
		}
	}
	if says {
		fmt.Fprintf(a.Stdout, "\n%v", beside)
	}
	return nil
}

// whileServing is what helps an engine whose device is full while it serves: it took the KV cache first, and the rest is
// what a step needs.
var whileServing = map[enginelog.Engine][]oomtext.Help{
	enginelog.VLLM: {
		{Do: "a lower --gpu-memory-utilization", Why: "a smaller KV cache leaves more memory to the steps"},
		{Do: "a lower --max-num-batched-tokens or --max-num-seqs", Why: "what a step holds grows with them"},
	},
	enginelog.SGLang: {
		{Do: "a lower --mem-fraction-static", Why: "a smaller KV cache leaves more memory to the steps"},
		{Do: "a lower --chunked-prefill-size or --max-running-requests", Why: "what a prefill holds grows with the first, and a decode step with the second"},
	},
}

// adviseEngine replaces what would help a program of PyTorch whose device is full by what helps the engine that it is.
func adviseEngine(failed *oomtext.Report, r *enginelog.Report) {
	advice, ok := whileServing[r.Engine]
	serves := slices.ContainsFunc(r.Devices, func(d *enginelog.Device) bool {
		cache, has := d.Get(enginelog.Cache)
		return has && cache > 0
	})
	if !ok || !serves {
		return // the weights did not fit, perhaps
	}
	for _, f := range failed.Failures {
		if f.Source == "PyTorch" && f.Verdict == verdict.TrulyFull {
			f.Helps = slices.Clone(advice)
		}
	}
}

// plainWord is a word that a shell takes as it is.
var plainWord = regexp.MustCompile(`^[\w./:+-]+$`)

// besideEstimate returns the command that puts the log beside the estimate of its model; "" if the model is not known by
// its name.
func besideEstimate(r *enginelog.Report, file string) string {
	if !plainWord.MatchString(r.Model) || !plainWord.MatchString(file) || r.Capacity.Context == nil || *r.Capacity.Context <= 0 {
		return ""
	}
	if _, err := zoo.ByName(r.Model); err != nil {
		return ""
	}
	command := fmt.Sprintf("%s estimate %s --serve --seq %d", cli.ProgramName, r.Model, *r.Capacity.Context)
	if n := r.Capacity.Parallel; n != nil && *n > 1 {
		command += fmt.Sprintf(" --tp %d", *n)
	}
	return command + " --measured " + file
}

// besideEngines returns the errors of a log without those that say less than an engine does of the same failure: that an
// allocation failed, and nothing of who has the memory.
func besideEngines(failed *oomtext.Report, reports []*enginelog.Report) *oomtext.Report {
	if failed == nil || !slices.ContainsFunc(reports, func(r *enginelog.Report) bool { return r.Failure != nil }) {
		return failed
	}
	beside := *failed
	beside.Failures = slices.DeleteFunc(slices.Clone(failed.Failures), func(f *oomtext.Failure) bool { return f.Capacity <= 0 && f.Free <= 0 })
	return &beside
}

// engineTitle names the engine and the model: "vLLM 0.11.2, Qwen/Qwen3-8B".
func engineTitle(r *enginelog.Report) string {
	title := string(r.Engine)
	if r.Version != "" {
		title += " " + line.Line(r.Version)
	}
	if r.Model != "" {
		title += ", " + line.Line(r.Model)
	}
	return title
}

// proseWidth is how wide sentences are printed.
const proseWidth = 80

func writeEngine(a *cli.App, r *enginelog.Report, explains bool) {
	writeEngineDevices(a, r)
	writeCapacity(a.Stdout, r)
	writeMoments(a, r.Moments)
	writePlans(a, r.Plans)
	if r.Failure != nil {
		fmt.Fprint(a.Stdout, line.Wrap(engineFailure(r.Failure), proseWidth, "", ""))
	}
	for _, n := range r.Notes {
		fmt.Fprint(a.Stdout, line.Wrap(line.Line(n), proseWidth, "Note: ", ""))
	}
	advice := r.Advice()
	if !explains || len(advice) == 0 {
		return
	}
	fmt.Fprintln(a.Stdout, "What would help, in this order:")
	for i, text := range advice {
		fmt.Fprint(a.Stdout, line.Wrap(text, proseWidth, fmt.Sprintf("%d. ", i+1), "   "))
	}
}

// mostDevices is how many devices are printed; JSON has all.
const mostDevices = 32

// engineLevels are what is known of a device besides its parts.
var engineLevels = []struct {
	title string
	of    func(*enginelog.Device) *alloc.Bytes
}{
	{"May take", func(d *enginelog.Device) *alloc.Bytes { return d.Limit }},
	{"Free before", func(d *enginelog.Device) *alloc.Bytes { return d.Free }},
	{"Free after", func(d *enginelog.Device) *alloc.Bytes { return d.Left }},
	{"Device", func(d *enginelog.Device) *alloc.Bytes { return d.Total }},
}

// writeEngineDevices prints a line for each device, and a column for each part that any of them has.
func writeEngineDevices(a *cli.App, r *enginelog.Report) {
	if len(r.Devices) == 0 {
		return
	}
	heading := []any{"Of"}
	parts := r.Parts()
	for _, of := range parts {
		heading = append(heading, strings.ToUpper(string(of[:1]))+string(of[1:]))
	}
	if len(parts) > 1 {
		heading = append(heading, "Sum")
	}
	var levels []func(*enginelog.Device) *alloc.Bytes
	for _, l := range engineLevels {
		if slices.ContainsFunc(r.Devices, func(d *enginelog.Device) bool { return l.of(d) != nil }) {
			heading, levels = append(heading, l.title), append(levels, l.of)
		}
	}
	t := cli.NewGrid(1, []string{"Free before", "Free after", "May take", "Output buffer", "Device"}, heading...)
	planned := false
	for _, d := range r.Devices[:min(len(r.Devices), mostDevices)] {
		row := table.Row{cmp.Or(line.Line(d.Name), "device")}
		for _, of := range parts {
			cell, expected := partCell(d, of)
			row, planned = append(row, cell), planned || expected
		}
		if len(parts) > 1 {
			row = append(row, d.Sum())
		}
		for _, level := range levels {
			row = append(row, known(level(d)))
		}
		t.AppendRow(row)
	}
	fmt.Fprint(a.Stdout, t.Fitted(cli.WidthOf(a.Stdout)))
	if planned {
		fmt.Fprintln(a.Stdout, "* what the engine expects: the log has no measurement")
	}
	if more := len(r.Devices) + r.Omitted - mostDevices; more > 0 {
		fmt.Fprintf(a.Stdout, "and %d more\n", more)
	}
}

// partCell returns the bytes of a part, with a star if the engine only expects them.
func partCell(d *enginelog.Device, of enginelog.Part) (cell string, expected bool) {
	i := slices.IndexFunc(d.Rows, func(row enginelog.Row) bool { return row.Of == of })
	switch {
	case i < 0:
		return "", false
	case d.Rows[i].Planned:
		return d.Rows[i].Bytes.String() + "*", true
	}
	return d.Rows[i].Bytes.String(), false
}

// known prints a value, nothing if it is not known.
func known(n *alloc.Bytes) string {
	if n == nil {
		return ""
	}
	return n.String()
}

// writeCapacity says what fits.
func writeCapacity(w io.Writer, r *enginelog.Report) {
	c := r.Capacity
	switch {
	case c.Tokens != nil && c.Requests != nil && c.Context != nil:
		fmt.Fprintf(w, "KV cache: %s tokens, %.2f requests of %s tokens at once%s\n", thousands(*c.Tokens), *c.Requests, thousands(*c.Context), perToken(r))
	case c.Requests != nil && c.Context != nil:
		fmt.Fprintf(w, "KV cache: %.2f requests of %s tokens at once\n", *c.Requests, thousands(*c.Context))
	case c.Tokens != nil && c.Context != nil:
		fmt.Fprintf(w, "KV cache: %s tokens, %.2f requests of %s tokens at once%s\n", thousands(*c.Tokens), float64(*c.Tokens)/float64(max(1, *c.Context)), thousands(*c.Context), perToken(r))
	case c.Tokens != nil:
		fmt.Fprintf(w, "KV cache: %s tokens%s\n", thousands(*c.Tokens), perToken(r))
	case c.Context != nil:
		fmt.Fprintf(w, "context: %s tokens\n", thousands(*c.Context))
	}
	if c.MaxRequests != nil {
		fmt.Fprintf(w, "at most %s requests run at once\n", thousands(*c.MaxRequests))
	}
	if c.Fraction != nil {
		fmt.Fprintf(w, "told to take %.4g of the device\n", *c.Fraction)
	}
	if c.Layers != nil && c.OnDevice != nil {
		fmt.Fprintf(w, "%d of %d layers are on devices\n", *c.OnDevice, *c.Layers)
	}
	if r.Projects != nil {
		fmt.Fprintf(w, "expected before loading: %v of the %v that were free\n", r.Projects.Needs, r.Projects.Free)
	}
}

// perToken says what a token takes, on the device whose cache is largest.
func perToken(r *enginelog.Report) string {
	var most alloc.Bytes
	holders := 0
	for _, d := range r.Devices {
		if n, ok := d.Get(enginelog.Cache); ok && n > 0 {
			most, holders = max(most, n), holders+1
		}
	}
	if most == 0 || *r.Capacity.Tokens <= 0 {
		return ""
	}
	out := fmt.Sprintf(", %v each", most/alloc.Bytes(*r.Capacity.Tokens))
	if holders > 1 {
		out += " on every device"
	}
	return out
}

// engineFailure says why an engine did not start.
func engineFailure(f *enginelog.Failure) string {
	out := fmt.Sprintf("Failed, line %d: %s", f.Line, f.Reason)
	var about []string
	if f.Of != "" && f.Reason != enginelog.NoMemoryForCache && f.Reason != enginelog.RequestTooLong {
		about = append(about, "for "+string(f.Of))
	}
	if f.Device != "" {
		about = append(about, "on "+line.Line(f.Device))
	}
	if len(about) > 0 {
		out += " (" + strings.Join(about, ", ") + ")"
	}
	switch {
	case f.Tokens != nil && f.Needs != nil && f.Has != nil:
		out += fmt.Sprintf(": %s tokens need %v, and there are %v", thousands(*f.Tokens), *f.Needs, *f.Has)
	case f.Tokens != nil && f.Fits != nil:
		return out + fmt.Sprintf(": %s tokens, and %s fit", thousands(*f.Tokens), thousands(*f.Fits))
	case f.Tokens != nil && f.Needs != nil:
		out += fmt.Sprintf(": %s tokens need %v", thousands(*f.Tokens), *f.Needs)
	case f.Needs != nil && f.Has != nil:
		out += fmt.Sprintf(": %v wanted, %v free", *f.Needs, *f.Has)
	case f.Needs != nil:
		out += fmt.Sprintf(": %v asked for", *f.Needs)
	}
	if f.Fits != nil {
		out += fmt.Sprintf("; %s tokens would fit", thousands(*f.Fits))
	}
	return out
}

// mostMoments is how many measurements are printed: those with the highest peaks, in their order.
const mostMoments = 20

func writeMoments(a *cli.App, all []enginelog.Moment) {
	if len(all) == 0 {
		return
	}
	shown := slices.Clone(all)
	if len(shown) > mostMoments {
		order := make([]int, len(all))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(all[y].Peak(), all[x].Peak()) })
		order = order[:mostMoments]
		slices.Sort(order)
		shown = shown[:0]
		for _, i := range order {
			shown = append(shown, all[i])
		}
		fmt.Fprintf(a.Stdout, "The %d highest of %d measurements:\n", mostMoments, len(all))
	}
	t := cli.NewGrid(1, []string{"Of", "Allocated", "Reserved"}, "At", "Of", "Allocated", "Peak allocated", "Reserved", "Peak reserved", "Peak active")
	for _, m := range shown {
		t.AppendRow(table.Row{line.Line(m.Label), line.Line(m.Device), known(m.Allocated), known(m.PeakAllocated), known(m.Reserved), known(m.PeakReserved), known(m.PeakActive)})
	}
	fmt.Fprint(a.Stdout, t.Fitted(cli.WidthOf(a.Stdout)))
}

func writePlans(a *cli.App, plans []enginelog.Plan) {
	if len(plans) == 0 {
		return
	}
	fmt.Fprintln(a.Stdout, "For parameters, gradients and the optimizer's states; activations are not counted:")
	t := cli.NewGrid(1, nil, "Options", "Per GPU", "CPU")
	for _, p := range plans {
		t.AppendRow(table.Row{line.Line(p.Options), p.GPU, p.CPU})
	}
	fmt.Fprint(a.Stdout, t.Fitted(cli.WidthOf(a.Stdout)))
}

// thousands prints a number with commas: 464,656.
func thousands(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0 && n >= 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
