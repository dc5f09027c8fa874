package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	line "github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/internal/verdict"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/rewind"
)

// processSet is the processes of a program's run, as found in files.
type processSet struct {
	processes []*export.Usage // only their sums, so that thousands need little memory
	info      map[*export.Usage]processInfo
	file      bool // one file, given by its name
	skipped   int  // files of a directory or pattern that are not snapshots
	older     int  // snapshots of a process that has a later one
	damaged   []damagedFile
}

// processInfo is what a table says of a process besides the sums.
type processInfo struct {
	moment      rewind.Moment // of live memory
	failed      string        // why the request failed, as the error said, if the moment is that of the error
	devices     []string
	host        mem.Tally // in the host's memory
	broken      int64     // segments that could not be read
	lacks       bool      // it does not know what is asked for
	names       nameSets  // the kinds and sections that it has
	filteredOut mem.Tally // memory that the filter leaves out
}

// readProcesses reads all files that the arguments name. In a directory or pattern, files that are not
// snapshots are skipped and counted, and damaged files are skipped and named. If nothing can be
// read, the error is the first file's.
func readProcesses(a *cli.App, o tableOptions, words ...string) (*processSet, error) {
	r := &processSet{info: make(map[*export.Usage]processInfo)}
	var first error
	for _, word := range words {
		paths, err := expand(word)
		if err != nil {
			return nil, err
		}
		named := len(paths) == 1 && paths[0] == word
		r.file = named && len(words) == 1
		read, infos, errs := readAll(a, paths, o)
		for i, err := range errs {
			switch {
			case err == nil:
				r.processes = append(r.processes, read[i])
				r.info[read[i]] = infos[i]
			case !named && errors.Is(err, files.ErrFormat):
				r.skipped++
			case named:
				return nil, err
			default:
				first = cmp.Or(first, err)
				r.damaged = append(r.damaged, damage(paths[i], err))
			}
		}
	}
	if len(r.processes) == 0 && first != nil {
		return nil, first
	}
	if len(r.processes) == 0 {
		return nil, fmt.Errorf("%s: none of the %d files is a snapshot, dump or profile", strings.Join(words, ", "), r.skipped)
	}
	r.processes, r.older = latestOf(r.processes, processOf)
	return r, nil
}

// expand returns the files that an argument names, sorted by name: the files of a directory, those
// that match a pattern, or one file. A URL and - stand for themselves. The error says that the
// pattern is malformed or that nothing matches.
func expand(word string) ([]string, error) {
	if word == "-" || cli.IsURL(word) {
		return []string{word}, nil
	}
	if info, err := os.Stat(word); err == nil {
		if !info.IsDir() {
			return []string{word}, nil
		}
		return filesIn(word)
	}
	found, err := filepath.Glob(word)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", word, err)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s: %w", word, os.ErrNotExist)
	}
	return found, nil
}

func filesIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if info, err := os.Stat(path); e.Name()[0] != '.' && (err != nil || info.Mode().IsRegular()) {
			found = append(found, path) // even if it cannot be read: without it the sum would be wrong
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s: the directory has no files", dir)
	}
	slices.Sort(found)
	return found, nil
}

// readAll reads files and keeps the sums of each.
func readAll(a *cli.App, paths []string, o tableOptions) ([]*export.Usage, []processInfo, []error) {
	const many, percent = 256, 250
	if len(paths) > many { // nearly all memory is garbage as soon as a file is summed up: the heap stays small, and its collections cost most
		debug.SetGCPercent(percent)
	}
	cli.Announce(a, paths)
	read, all, errs := make([]*export.Usage, len(paths)), make([]processInfo, len(paths)), make([]error, len(paths))
	pool := cli.NewPool(a)
	inParallel(len(paths), func(i int) {
		errs[i] = pool.Read(paths[i], func(f *files.File) (err error) {
			if read[i], err = all[i].read(f, o); err != nil {
				return fmt.Errorf("%s: %w", paths[i], err)
			}
			return nil
		})
	})
	return read, all, errs
}

// read sums up the memory of a process.
func (p *processInfo) read(f *files.File, o tableOptions) (*export.Usage, error) {
	if len(f.Failures) > 0 && len(f.Usage.Fill().Rows) == 0 {
		return nil, fmt.Errorf("the log does not tell what is in use: see what it tells with %s explain", cli.ProgramName)
	}
	u, buffers := f.Usage, (*export.Usage)(nil)
	if o.of == "live" {
		at, err := statesAt(f, o.at)
		if err != nil {
			return nil, err
		}
		if o.filter.Older > 0 || o.by == "label" {
			if buffers, err = at.buffers(f, o.filter.Older); err != nil {
				return nil, err
			}
		}
		u, p.moment = at.usage(f), at.Moment
		if p.moment.At == "oom" && f.Dump != nil && f.Dump.OOM != nil {
			p.failed = f.Dump.OOM.Advice
		}
	}
	p.devices, p.broken = devices(u), brokenIn(f.Dump)
	p.host = counted(u.Each(true), o)
	p.lacks = lacks(u.Each(o.host), o.of)
	its := *u
	its.Device = deviceOf(u)
	if !o.filter.any() && buffers == nil {
		if o.host {
			return its.HostSummary(o.sumBy(), o.of), nil
		}
		return its.Summary(o.sumBy(), o.of), nil
	}
	its.Fill()
	if o.host {
		its.Rows = its.Host
	}
	p.names = newNameSets()
	p.names.add(its.Rows)
	all := counted(its.Each(false), o)
	switch {
	case buffers != nil && o.host:
		its.Rows = buffers.Host
	case buffers != nil:
		its.Rows = buffers.Rows
	}
	its.Rows = o.filter.of(its.Rows)
	p.filteredOut = all.Sub(counted(its.Each(false), o))
	return its.Summary(o.sumBy(), o.of), nil
}

// brokenIn returns the number of segments that could not be read, on all devices of a file.
func brokenIn(d *snapshot.Dump) (n int64) {
	if d == nil {
		return 0
	}
	n = d.BrokenSegments()
	for _, other := range d.Others {
		n += brokenIn(other)
	}
	return n
}

// counted sums up the memory of rows that is asked for.
func counted(rows iter.Seq[*export.Row], o tableOptions) (sum mem.Tally) {
	for r := range rows {
		switch o.of {
		case "peak":
			sum = sum.Add(r.Peak)
		case "total":
			sum = sum.Add(r.Total)
		default:
			sum = sum.Add(r.Live)
		}
	}
	return sum
}

// inParallel calls do with 0 to n-1, in as many goroutines as there are processors.
func inParallel(n int, do func(i int)) {
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(n, runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for i := range next {
				do(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	workers.Wait()
}

// process identifies the process and the device of a snapshot.
type process struct {
	host, program, device string
	pid, rank, ordinal    int
}

// latestOf keeps the latest of several snapshots of one process and device, in the place of the
// first, and returns how many it left out. Those without a process number are all kept.
func latestOf[T any](all []T, of func(T) (process, time.Time)) (latest []T, older int) {
	at := make(map[process]int)
	for _, one := range all {
		p, now := of(one)
		i, known := at[p]
		if p.pid == 0 || !known {
			at[p] = len(latest)
			latest = append(latest, one)
			continue
		}
		older++
		if _, before := of(latest[i]); !now.Before(before) {
			latest[i] = one
		}
	}
	return latest, older
}

func processOf(u *export.Usage) (process, time.Time) {
	p := process{host: u.Origin.Host, program: u.Origin.Program, device: deviceOf(u), pid: u.Origin.PID, rank: -1}
	if u.Origin.Rank != nil {
		p.rank = *u.Origin.Rank
	}
	return p, u.Time
}

// deviceOf returns the device's name, if there is one.
func deviceOf(u *export.Usage) string {
	if u.Device == "" {
		for r := range u.Each(false) {
			return r.Device
		}
	}
	return u.Device
}

// at names the moment of live memory: "at the end of ".
func (s *processSet) at(o tableOptions) string {
	if o.of != "live" {
		return ""
	}
	return "at " + momentsOf(s.processes, func(u *export.Usage) rewind.Moment { return s.info[u].moment }) + " of "
}

// String says what was read and what was not.
func (s *processSet) String() string {
	words := []string{s.files()}
	if s.older > 0 {
		words = append(words, fmt.Sprintf("%s of the same processes left out", count(s.older, "older snapshot")))
	}
	words = append(words, notRead(s.skipped, s.damaged)...)
	if without := s.sum(filteredOutOf); !without.IsZero() {
		words = append(words, fmt.Sprintf("%v filtered out", without))
	}
	return strings.Join(words, "; ")
}

// files names the files that were read.
func (s *processSet) files() string {
	if len(s.processes) != 1 {
		return fmt.Sprintf("%d files", len(s.processes))
	}
	return describe(s.processes[0], s.info[s.processes[0]].devices)
}

// describe names a file, its devices, its process and its time. It counts more than two devices.
func describe(u *export.Usage, devices []string) string {
	if len(devices) > 2 {
		devices = []string{fmt.Sprintf("%d devices", len(devices))}
	}
	words := append([]string{u.Name}, devices...)
	if origin := u.Origin.String(); origin != "" {
		words = append(words, origin)
	}
	if !u.Time.IsZero() {
		words = append(words, line.When(u.Time))
	}
	return line.Line(strings.Join(words, ", "))
}

// devices names the devices of a file. Of many it names the first few.
func devices(u *export.Usage) (names []string) {
	const most = 8
	seen := make(map[string]bool)
	for r := range u.Each(false) {
		if r.Device != "" && !seen[r.Device] {
			seen[r.Device] = true
			names = append(names, r.Device)
		}
	}
	slices.Sort(names)
	if more := len(names) - most; more > 0 {
		names = append(names[:most], fmt.Sprintf("%d more devices", more))
	}
	return names
}

// notRead counts the files of a directory or pattern that are not among the processes.
func notRead(skipped int, damaged []damagedFile) (words []string) {
	if skipped > 0 {
		words = append(words, count(skipped, "other file")+" skipped")
	}
	if len(damaged) > 0 {
		words = append(words, count(len(damaged), "damaged file")+" left out")
	}
	return words
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// damagedFile is a file of a directory or pattern that could not be read. The others are counted
// without it.
type damagedFile struct {
	Name  string `json:"name"`
	Error string `json:"error"`
}

func damage(path string, err error) damagedFile {
	return damagedFile{path, strings.TrimPrefix(err.Error(), path+": ")}
}

// printDamaged prints the files that could not be read.
func printDamaged(w io.Writer, files []damagedFile) {
	for _, f := range files {
		fmt.Fprintf(w, "  not read: %s: %s\n", line.Line(f.Name), line.Line(f.Error))
	}
}

// sum adds up a value of all processes.
func (s *processSet) sum(of func(processInfo) mem.Tally) (sum mem.Tally) {
	for _, u := range s.processes {
		sum = sum.Add(of(s.info[u]))
	}
	return sum
}

func hostOf(p processInfo) mem.Tally { return p.host }

func filteredOutOf(p processInfo) mem.Tally { return p.filteredOut }

// names returns the kinds and sections of all processes.
func (s *processSet) names() nameSets {
	all := newNameSets()
	for _, u := range s.processes {
		all.join(s.info[u].names)
	}
	return all
}

// shownFiles says what was read on one side of a comparison.
type shownFiles struct {
	Files   []shownFile   `json:"files"`
	Older   int           `json:"older_snapshots"`         // older snapshots of the same processes, left out
	Passed  int           `json:"other_files"`             // files of a directory that are not snapshots
	Damaged []damagedFile `json:"damaged_files,omitempty"` // files of a directory that could not be read
	Without mem.Tally     `json:"filtered_out,omitzero"`
}

type shownFile struct {
	Name    string          `json:"name"`
	Devices []string        `json:"devices"`
	Time    *time.Time      `json:"time,omitempty"`
	Process snapshot.Origin `json:"process"`
	Moment  *rewind.Moment  `json:"moment,omitempty"`          // of live memory
	Broken  int64           `json:"broken_segments,omitempty"` // segments that could not be read
	Failure *failureJSON    `json:"failure,omitempty"`         // at the moment of an error
}

// failureJSON is why a request failed.
type failureJSON struct {
	Verdict verdict.Verdict `json:"verdict"` // null if the error did not say
	Says    string          `json:"says"`
}

func (s *processSet) json() shownFiles {
	out := shownFiles{Files: []shownFile{}, Older: s.older, Passed: s.skipped, Damaged: s.damaged, Without: s.sum(filteredOutOf)}
	for _, u := range s.processes {
		info := s.info[u]
		f := shownFile{Name: u.Name, Devices: append([]string{}, info.devices...), Process: u.Origin, Broken: info.broken}
		if info.moment.At != "" {
			f.Moment = &info.moment
		}
		if info.failed != "" {
			f.Failure = &failureJSON{verdict.OfAdvice(info.failed), info.failed}
		}
		if u.Device != "" && len(f.Devices) == 0 {
			f.Devices = []string{u.Device}
		}
		if !u.Time.IsZero() {
			f.Time = &u.Time
		}
		out.Files = append(out.Files, f)
	}
	return out
}
