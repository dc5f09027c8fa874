// Package probes reports the calls of watched functions by programs in the kernel. They are written in C,
// in tracker/attach/bpf: see calls.bpf.c there for where they begin. This package loads them, attaches them
// to the functions of libraries, and reads the events that they write.
//
// The objects are committed: who changes the C needs clang 14, and the headers of libbpf. CI compiles them
// again, and fails if they are not those of the source.
package probes

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target amd64,arm64 -cc clang-14 -strip llvm-strip-14 -cflags "-O2 -Wall -Wextra -Werror -Wno-unused-parameter -mcpu=v3 -ffreestanding" -type event -type stack_part -type code_copy -type exec -type generation -type rule_key -type share programs ../../bpf/programs.bpf.c
