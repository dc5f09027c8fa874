#!/usr/bin/env bash
# Guess: pprof -unit=MiB prints bytes in units of 2^20, or says that it does not know the unit.
# Version: github.com/google/pprof v0.0.0-20260906184651-6331bc6350fe, its package profile and its command.
# Behaviour: MiB is ignored without a word, and the numbers stay in bytes; MB is 2^20.
# Seen: 100663296 bytes: "100663296B" by -unit=MiB, "96MB" by -unit=MB.
# Source: internal/measurement/measurement.go (github.com/google/pprof).
# Why: GPU tools say MiB (nvidia-smi, PyTorch). Who puts a profile beside them asks for MiB and gets bytes; the unit to ask
#   for is MB.
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
		Sample:     []*profile.Sample{{Location: []*profile.Location{l}, Value: []int64{96 << 20}}},
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
	go build -o pprof github.com/google/pprof
	go run . >a.pb.gz
	./pprof -top -unit=MiB -output=a.txt a.pb.gz
	./pprof -top -unit=MB -output=b.txt a.pb.gz
} >log 2>&1 || {
	cat log
	exit 1
}
flat() { awk '$NF == "train.step" { print $1 }' "$1"; }
figures="100663296 bytes are $(flat a.txt) by -unit=MiB, $(flat b.txt) by -unit=MB"
if [ "$(flat a.txt)" != 100663296B ] || [ "$(flat b.txt)" != 96MB ] || grep -q MiB log; then
	echo "pprof-unit-mib: changed: $figures"
	exit 1
fi
echo "pprof-unit-mib: holds: $figures"
