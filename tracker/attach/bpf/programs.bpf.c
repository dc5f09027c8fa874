//go:build ignore

// The programs that run in the kernel when a watched process calls a watched function, and when
// processes start and end. See calls.bpf.c for where they begin.
#include "common.h"
#include "code.bpf.c"
#include "stack.bpf.c"
#include "frames.bpf.c"
#include "tree.bpf.c"
#include "calls.bpf.c"

char __license[] SEC("license") = "Dual MIT/GPL";

// Types of records, of which Go has declarations, too: bpf2go finds those of variables.
const struct stack_part *const stack_part_type = NULL;
const struct code_copy *const code_copy_type = NULL;
const struct exec *const exec_type = NULL;
