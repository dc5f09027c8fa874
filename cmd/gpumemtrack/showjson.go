package main

import (
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

const (
	showSchema = "gpumemtrack.show/1"
	diffSchema = "gpumemtrack.diff/1"
)

// shownFiles says what was read, of one side of a comparison.
type shownFiles struct {
	Files  []shownFile `json:"files"`
	Older  int         `json:"older_snapshots"` // of the same processes, left out
	Passed int         `json:"other_files"`     // of a directory, that are no snapshots
}

type shownFile struct {
	Name    string          `json:"name"`
	Devices []string        `json:"devices"`
	Time    *time.Time      `json:"time,omitempty"`
	Process snapshot.Origin `json:"process"`
}

func (r *ranks) json() shownFiles {
	out := shownFiles{Files: []shownFile{}, Older: r.older, Passed: r.passed}
	for _, u := range r.processes {
		f := shownFile{Name: u.Name, Devices: append([]string{}, devices(u)...), Process: u.Origin}
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

// shown is what show --json prints.
type shown struct {
	Schema string `json:"schema"`
	By     string `json:"by"`
	Of     string `json:"of"`
	shownFiles
	Lines []shownLine `json:"lines"`
	Total shownLine   `json:"total"`
}

type shownLine struct {
	Key    string      `json:"key"`
	Bytes  alloc.Bytes `json:"bytes"`
	Count  int64       `json:"count"`
	Spread *spreadJSON `json:"spread,omitempty"` // of several files
}

// spreadJSON tells processes apart: which has most, or grew most.
type spreadJSON struct {
	Most   alloc.Bytes `json:"most_bytes"`
	In     string      `json:"most_in"`
	Spread alloc.Bytes `json:"bytes"`
}

func spreadOf(l export.Line, names []string) *spreadJSON {
	rank, most := l.Worst()
	if len(names) < 2 || rank < 0 {
		return nil
	}
	return &spreadJSON{Most: most.Bytes, In: names[rank], Spread: l.Spread()}
}

func shownJSON(r *ranks, lines []export.Line, sum export.Line, names []string, o tableOptions) shown {
	line := func(l export.Line) shownLine {
		return shownLine{Key: l.Key, Bytes: l.After.Bytes, Count: l.After.Count, Spread: spreadOf(l, names)}
	}
	out := shown{Schema: showSchema, By: o.by, Of: o.of, shownFiles: r.json(), Lines: []shownLine{}, Total: line(sum)}
	for _, l := range lines {
		out.Lines = append(out.Lines, line(l))
	}
	return out
}

// diffOutput is what diff --json prints.
type diffOutput struct {
	Schema     string          `json:"schema"`
	By         string          `json:"by"`
	Of         string          `json:"of"`
	Before     shownFiles      `json:"before"`
	After      shownFiles      `json:"after"`
	OnlyBefore []processMemory `json:"only_before"` // not counted
	OnlyAfter  []processMemory `json:"only_after"`
	Lines      []diffLine      `json:"lines"`
	Total      diffLine        `json:"total"`
}

type processMemory struct {
	Name  string      `json:"name"`
	Bytes alloc.Bytes `json:"bytes"`
}

type diffLine struct {
	Key         string      `json:"key"`
	Before      alloc.Bytes `json:"before_bytes"`
	After       alloc.Bytes `json:"after_bytes"`
	Change      alloc.Bytes `json:"change_bytes"`
	CountBefore int64       `json:"before_count"`
	CountAfter  int64       `json:"after_count"`
	Spread      *spreadJSON `json:"spread,omitempty"`
}

func diffLineOf(l export.Line, names []string) diffLine {
	return diffLine{
		Key: l.Key, Before: l.Before.Bytes, After: l.After.Bytes, Change: l.Change().Bytes,
		CountBefore: l.Before.Count, CountAfter: l.After.Count, Spread: spreadOf(l, names),
	}
}

func processMemories(processes []*export.Usage, of string) []processMemory {
	list := []processMemory{}
	for i, name := range processNames(processes) {
		_, sum := export.Compare(nil, processes[i:i+1], export.ByKind, export.Of(of))
		list = append(list, processMemory{name, sum.After.Bytes})
	}
	return list
}
