#!/usr/bin/env bash
# Guess: samples with the numeric labels device 0 and device 1 are two devices in pprof.
# Version: github.com/google/pprof v0.0.0-20260906184651-6331bc6350fe, its package profile and its command.
# Behaviour: a numeric label of value 0 without a unit is dropped when a profile is read; with any unit it stays.
# Seen: "device: Total 64MB of 128MB (50.00%)", with one row, 1; -tagfocus=device=0 matches no sample. With the unit
#   "index" both rows are there.
# Source: postDecode in profile/encode.go and the message Label in proto/profile.proto (github.com/google/pprof).
# Why: GPUs are numbered from 0. A memory profile that numbers its devices loses the first one, on most machines the only
#   one; a label that is text, or a unit, keeps it.
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
	f := &profile.Function{ID: 1, Name: "train.step", Filename: "train.py"}
	l := &profile.Location{ID: 1, Line: []profile.Line{{Function: f, Line: 3}}}
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "inuse_space", Unit: "bytes"}},
		Function:   []*profile.Function{f},
		Location:   []*profile.Location{l},
	}
	for device := range int64(2) {
		s := &profile.Sample{
			Location: p.Location,
			Value:    []int64{64 << 20},
			NumLabel: map[string][]int64{"device": {device}},
		}
		if unit := os.Args[1]; unit != "" {
			s.NumUnit = map[string][]string{"device": {unit}}
		}
		p.Sample = append(p.Sample, s)
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
	./write '' >plain.pb.gz
	./write index >unit.pb.gz
	./pprof -tags -output=plain.txt plain.pb.gz
	./pprof -tags -output=unit.txt unit.pb.gz
} >log 2>&1 || {
	cat log
	exit 1
}
rows() { grep -c '%): [0-9]' "$1" || true; }
figures="$(rows plain.txt) of 2 devices without a unit, $(rows unit.txt) with one; $(sed -n 's/^ *\(device: .*\)/\1/p' plain.txt)"
if [ "$(rows plain.txt)" != 1 ] || [ "$(rows unit.txt)" != 2 ]; then
	echo "pprof-device-zero: changed: $figures"
	exit 1
fi
echo "pprof-device-zero: holds: $figures"
