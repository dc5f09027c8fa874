package cli

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/internal/inputs"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
)

const stdinName = "standard input"

// Input is what an argument names, opened and unpacked: a file, standard input, or the dump of a live page. Nothing of it
// was read yet.
type Input struct {
	*bounded.Reader
	Name string       // for errors
	Kind *inputs.Kind // what it is; inputs.Text if a text's beginning does not say so, nil if it is no text either

	app     *App
	limits  bounded.Limits
	limited bool   // by --max-file
	as      bool   // Kind is what --as says
	unlike  bool   // and the beginning shows another kind
	command string // that reads it
	path    string // of a file; "" if it cannot be opened again
	shown   string // the name in tables
	file    *readFile
}

// Close closes the file.
func (in *Input) Close() error { return in.file.Close() }

// Size returns the bytes of the file, packed as it is; 0 if that is not known.
func (in *Input) Size() int64 { return in.file.size }

// Done returns how many of them were read. Any goroutine may call it.
func (in *Input) Done() int64 { return in.file.read() }

// Pasted returns the argument of a command that reads standard input without one. At a terminal it says what to do.
func Pasted(a *App, args []string) string {
	if len(args) > 0 && args[0] != "-" {
		return args[0]
	}
	if _, ok := Terminal(a.Stdin); ok {
		fmt.Fprintln(a.Stderr, "Paste the text, then press Enter and Ctrl-D (on Windows Ctrl-Z and Enter).")
	}
	return "-"
}

// Again opens the file again, at its beginning: see CanReopen.
func (in *Input) Again() error {
	f, err := openFile(in.app, in.path)
	if err != nil {
		return err
	}
	in.file.Close()
	in.file = f
	in.Reader, err = bounded.NewReaderWithin(f, in.limits)
	return err
}

// AddInputFlags adds the flags of every command that reads files: the kind of file that the argument is, and how large it
// may be.
func AddInputFlags(a *App, cmd *cobra.Command) {
	addAsFlag(a, cmd, cmd.Name(), "read the file as one of a `KIND`, whatever it looks like: see "+ProgramName+" help inputs")
	addLimitFlags(a, cmd, "a file")
}

// AddInputFlagsOf adds the flags of AddInputFlags for the file that a flag names, to a command that reads other kinds by it:
// see Reading.
func AddInputFlagsOf(a *App, cmd *cobra.Command, flag, command string) {
	addAsFlag(a, cmd, command, "`KIND` of the file of --"+flag+": see help inputs")
	addLimitFlags(a, cmd, "the file of --"+flag)
}

func addAsFlag(a *App, cmd *cobra.Command, command, usage string) {
	cmd.Flags().StringVar(&a.as, "as", "", usage)
	Complete(cmd, "as", inputs.Names(command)...)
}

// OpenInput opens what an argument names and says what kind it is. Its size is limited by --max-file and --max-memory. The
// error of a file whose kind the running command does not read says which command does, and wraps files.ErrFormat.
func OpenInput(a *App, word string) (*Input, error) {
	limits := limitsOf(a)
	limitMemory(limits.Memory)
	return openWithin(a, word, limits)
}

func openWithin(a *App, word string, limits bounded.Limits) (*Input, error) {
	endOnSignal(a)
	in := &Input{app: a, Name: word, shown: word, command: a.command, limits: limits, limited: a.maxFile > 0}
	var err error
	switch {
	case word == "-":
		in.Name, in.shown = stdinName, stdinName
		in.file = readFrom(a, io.NopCloser(a.Stdin))
	case IsURL(word):
		var body io.ReadCloser
		if body, in.Name, err = fetch(word); err == nil {
			in.file = readFrom(a, body)
		}
	default:
		in.path = word
		in.file, err = openFile(a, word)
	}
	if err != nil {
		return nil, err
	}
	if err := in.identify(a.as); err != nil {
		in.file.Close()
		return nil, err
	}
	return in, nil
}

// identify reads the beginning, and checks that the command takes what it shows.
func (in *Input) identify(as string) error {
	r, err := bounded.NewReaderWithin(in.file, in.limits)
	if err != nil {
		return fmt.Errorf("%s: %w", in.Name, err)
	}
	in.Reader = r
	if as != "" {
		if in.Kind, err = inputs.ByName(as); err != nil {
			return UsageError("--as %s: %w", as, err)
		}
		if in.as = true; !in.Kind.TakenBy(in.command) {
			return UsageError("--as %s: %s reads %s", as, in.command, strings.Join(inputs.Names(in.command), ", "))
		}
		head, _ := r.Peek(inputs.HeadSize)
		in.unlike = inputs.For(in.command, head) != in.Kind
		return nil
	}
	head, err := r.Peek(inputs.HeadSize)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: %w", in.Name, bounded.Torn(err))
	}
	in.Kind = inputs.For(in.command, head)
	if in.Kind == nil || in.Kind.Log() || in.Kind == inputs.Text || in.Kind.TakenBy(in.command) {
		return nil
	}
	return in.misplaced(in.Kind, files.ErrFormat)
}

// File reads the input as a file of memory: a snapshot, dump, profile, or log of an allocator. The error of another kind of
// file says which command reads it, or where to find what is read.
//
// The usage gets its rows by its method Fill, when they are needed.
func (in *Input) File() (*files.File, error) {
	var f *files.File
	var err error
	if in.as {
		f, err = files.ReadDeferredAs(in.Reader, in.Kind.Name)
	} else {
		f, err = files.ReadDeferred(in.Reader)
	}
	if err == nil {
		f.Usage.Name = in.shown
		return f, nil
	}
	if in.unlike {
		return nil, &misplaced{err, fmt.Sprintf("%s cannot be read as %s, as --as says: leave --as away", in.Name, in.Kind.What)}
	}
	err = in.Error(err)
	if errors.Is(err, files.ErrFormat) {
		return nil, in.Unread(err)
	}
	return nil, err
}

// Error returns the error of reading the input, with its name and, if the input is too large, what to do.
func (in *Input) Error(err error) error { return fmt.Errorf("%s: %w", in.Name, in.enlarged(err)) }

// enlarged adds to the error of an input that is too large which flag allows more, and what the whole input would take.
func (in *Input) enlarged(err error) error {
	limit, ok := errors.AsType[*bounded.LimitError](err)
	if !ok {
		return err
	}
	flag := maxFileFlag
	if limit.Memory {
		flag = maxMemoryFlag
	}
	if whole := wholeOf(limit, in.file.read(), in.file.size); whole > 0 {
		return fmt.Errorf("%w: raise --%s, the whole file takes about %v", err, flag, whole)
	}
	return fmt.Errorf("%w: raise --%s, to %v perhaps", err, flag, 2*alloc.Bytes(limit.Limit))
}

// Stream lifts the limit of the file's size, for who keeps little of it, unless --max-file was given.
func (in *Input) Stream() {
	if !in.limited {
		in.Reader.Stream()
	}
}

// IsLog reports whether the input is a text whose lines tell what it holds.
func (in *Input) IsLog() bool { return in.Kind == inputs.Text || in.Kind != nil && in.Kind.Log() }

// CanReopen reports whether Reopened can read the input once more.
func (in *Input) CanReopen() bool { return in.path != "" }

// Reopened opens the file again and reads it as File does.
func (in *Input) Reopened() (*files.File, error) {
	file, err := openFile(in.app, in.path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return in.ReadAgain(file)
}

// ReadAgain reads what was kept of the input, from its beginning, as File does.
func (in *Input) ReadAgain(kept io.Reader) (*files.File, error) {
	r, err := bounded.NewReaderWithin(kept, in.limits)
	if err != nil {
		return nil, in.Error(err)
	}
	f, err := files.Read(r)
	if err != nil {
		return nil, in.Error(err)
	}
	f.Usage.Name = in.shown
	return f, nil
}

// Unread returns the error of an input that the command could not use: it says which command reads what is in it, or, if
// there is none, where to find what is read. err is what the command found.
func (in *Input) Unread(err error) error {
	for _, kind := range in.found() {
		if !kind.TakenBy(in.command) {
			return in.misplaced(kind, err)
		}
	}
	return fmt.Errorf("%w; %s reads %s (%s help inputs lists what is read)", err, in.command, strings.Join(inputs.Names(in.command), ", "), ProgramName)
}

// found returns the kinds that an input has lines of.
func (in *Input) found() []*inputs.Kind {
	switch {
	case !in.IsLog() || in.path == "":
		return nil
	}
	f, err := openFile(in.app, in.path)
	if err != nil {
		return nil
	}
	defer f.Close()
	r, err := bounded.NewReaderWithin(f, in.limits)
	if err != nil {
		return nil
	}
	kinds, err := inputs.Scan(r)
	if err != nil {
		return nil
	}
	return kinds
}

// misplaced is the error of a file that belongs to another command. It wraps the error that it
// replaces, so that such files of a directory are skipped.
type misplaced struct {
	error
	instead string
}

func (m *misplaced) Error() string { return m.instead }

func (m *misplaced) Unwrap() error { return m.error }

func (in *Input) misplaced(kind *inputs.Kind, err error) error {
	do := kind.Instead
	if len(kind.Takes) > 0 {
		do = fmt.Sprintf("run %s %s %s", ProgramName, kind.Takes[0], in.shown)
	}
	return &misplaced{err, fmt.Sprintf("%s is %s: %s", in.shown, kind.What, do)}
}

// CheckFile says of a file that its command cannot read it, if its beginning shows that it belongs to another one.
// It returns nil of a file that the command reads, of a directory, and of what is not known.
func CheckFile(a *App, path string) error {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return nil
	}
	looked := *a
	looked.as = "" // it is of another file, or says what the command reads anyway
	in, err := OpenInput(&looked, path)
	if err == nil {
		defer in.Close()
		if in.Kind == nil || !in.Kind.Log() || in.Kind.TakenBy(a.command) {
			return nil
		}
		return in.misplaced(in.Kind, files.ErrFormat)
	}
	if m, ok := errors.AsType[*misplaced](err); ok {
		return m
	}
	return nil
}

// fetch asks a live page for its dump.
func fetch(address string) (body io.ReadCloser, name string, err error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, "", UsageError("%w", err)
	}
	if !strings.HasSuffix(u.Path, "/dump") {
		u = u.JoinPath("dump")
	}
	client := http.Client{Timeout: time.Minute}
	answer, err := client.Get(u.String())
	if err != nil {
		return nil, "", fmt.Errorf("no live page answers: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		answer.Body.Close()
		return nil, "", fmt.Errorf("%v: %s: want the URL of a live page, such as http://localhost:6061/debug/gpumem/", u, answer.Status)
	}
	return answer.Body, u.String(), nil
}
