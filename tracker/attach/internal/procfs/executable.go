package procfs

import (
	"debug/elf"
	"fmt"
	"os"
	"path"
	"path/filepath"
)

// Executable is what the kernel knows of the file that a process has executed. The process may have ended.
type Executable struct {
	Path    string // as it was given: it may be relative to the working directory
	CodeEnd uint64 // the address at which its code ends
	Inode   uint64
	Parent  int // the process ID of the parent
}

// Mappings returns the name of the program and the mappings of its code. They are empty if its file is not
// found, or is another by now: it is searched for where the process and its parent see it.
func (x Executable) Mappings(pid int) (program string, all []Mapping) {
	for _, process := range []string{fmt.Sprint(pid), fmt.Sprint(x.Parent), "self"} {
		inside := x.Path
		if !path.IsAbs(inside) {
			working, err := os.Readlink("/proc/" + process + "/cwd")
			if err != nil {
				continue
			}
			inside = path.Join(working, inside)
		}
		for _, root := range []string{"/proc/" + process + "/root", ""} {
			if all = x.mappings(root+inside, inside); all != nil {
				if resolved, err := filepath.EvalSymlinks(root + inside); err == nil {
					inside = resolved
				}
				return path.Base(inside), all
			}
		}
	}
	return "", nil
}

// mappings returns the mappings of the code of a file, which has another path inside a container; nil if it
// is not the executable.
func (x Executable) mappings(file, inside string) (all []Mapping) {
	info, err := os.Stat(file)
	if err != nil || Inode(info) != x.Inode || !info.Mode().IsRegular() {
		return nil
	}
	program, err := elf.Open(file)
	if err != nil {
		return nil
	}
	defer program.Close()
	page := uint64(os.Getpagesize())
	var end uint64 // of its code, as the file has it
	for _, p := range program.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 {
			end = max(end, p.Vaddr+p.Filesz)
		}
	}
	for _, p := range program.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 {
			start := x.CodeEnd - end + p.Vaddr
			all = append(all, Mapping{
				Start: start &^ (page - 1), End: (start + p.Memsz + page - 1) &^ (page - 1), Offset: p.Off &^ (page - 1),
				Inode: x.Inode, Path: inside, Outside: file,
			})
		}
	}
	return all
}
