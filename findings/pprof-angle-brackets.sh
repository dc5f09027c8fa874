#!/usr/bin/env bash
# Guess: pprof shows the functions of a Python program by the names in the profile, <module> and <lambda> among them.
# Version: github.com/google/pprof v0.0.0-20260906184651-6331bc6350fe, its package profile and its command.
# Behaviour: where a function's name and its system name are equal, what is between angle brackets is cut away as if it were
#   the arguments of a C++ template; the name is then empty, and all such functions are one row. With an empty system name
#   they stay.
# Seen: <module>, <lambda> and step of 64 MiB each: rows "<unknown>" of 128MB and "step" of 64MB.
# Source: demangleSingleFunction and removeMatching in internal/symbolizer/symbolizer.go; fields name and system_name of
#   proto/profile.proto (github.com/google/pprof).
# Why: in training scripts most memory is allocated below <module>, <lambda> and <listcomp>. A writer of memory profiles that
#   fills both names, as the format invites, has its largest rows merged under <unknown>.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >main.go <<'EOF'
package main

import (
	"log"
	"os"

	"github.com/google/pprof/profile"
)

func main() {
	p := &profile.Profile{SampleType: []*profile.ValueType{{Type: "inuse_space", Unit: "bytes"}}}
	for i, name := range []string{"<module>", "<lambda>", "step"} {
		id := uint64(i + 1)
		f := &profile.Function{ID: id, Name: name, Filename: "train.py"}
		if os.Args[1] == "both" {
			f.SystemName = name
		}
		l := &profile.Location{ID: id, Line: []profile.Line{{Function: f, Line: int64(id)}}}
		p.Function = append(p.Function, f)
		p.Location = append(p.Location, l)
		p.Sample = append(p.Sample, &profile.Sample{Location: []*profile.Location{l}, Value: []int64{64 << 20}})
	}
	if err := p.CheckValid(); err != nil {
		log.Fatal(err)
	}
	if err := p.Write(os.Stdout); err != nil {
		log.Fatal(err)
	}
}
EOF
{
	go mod init finding
	go get github.com/google/pprof@v0.0.0-20260906184651-6331bc6350fe
	go build -o write .
	go build -o pprof github.com/google/pprof
	for names in both one; do
		./write "$names" >"$names.pb.gz"
		./pprof -top -output="$names.txt" "$names.pb.gz"
	done
} >log 2>&1 || {
	cat log
	exit 1
}
rows() { awk '/flat%/ { rows = 1; next } rows { printf "%s%s %s", sep, $NF, $1; sep = ", " }' "$1"; }
figures="both names: $(rows both.txt); name alone: $(rows one.txt)"
case $figures in
"both names: <unknown> 128MB, step 64MB; name alone: "*"<module> 64MB"*) echo "pprof-angle-brackets: holds: $figures" ;;
*)
	echo "pprof-angle-brackets: changed: $figures"
	exit 1
	;;
esac
