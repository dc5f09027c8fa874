package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// sudo replaces the variable PATH by one of its own. So "sudo gpumemtrack attach -- python train.py" runs
// the python of the system where "python train.py" runs that of a virtual environment.

// sudoHint says that sudo's PATH finds another program than the user's, or none, and what to write
// instead; "" if it does not, or if that is not known. found is the program's path, "" if there is none;
// env is our environment, and before what sudo itself was started with, nil if that cannot be read.
func sudoHint(name, program, found string, env, before []string) string {
	if variable(env, "SUDO_USER") == "" || strings.ContainsRune(program, filepath.Separator) {
		return "" // not by sudo, or not by PATH
	}
	advice := fmt.Sprintf(`write sudo env "PATH=$PATH" gpumemtrack %s ...`, name)
	if name == "attach" {
		advice += ", or use attach --preload, which needs no sudo"
	}
	isPython := strings.HasPrefix(program, "python")
	theirs := lookIn(variable(before, "PATH"), program)
	if venv := variable(env, "VIRTUAL_ENV"); theirs == "" && isPython && venv != "" {
		theirs = lookIn(filepath.Join(venv, "bin"), program)
	}
	switch {
	case theirs != "" && found == "":
		return fmt.Sprintf("your own PATH has %s, but PATH under sudo is another: to run that, %s", theirs, advice)
	case theirs != "" && !sameFile(theirs, found):
		return fmt.Sprintf("running %s, which PATH under sudo has first. Your own PATH has %s: to run that, %s", found, theirs, advice)
	case theirs != "" || before != nil:
		return "" // it is the user's, or nowhere
	case found == "":
		return fmt.Sprintf("PATH under sudo is not your own: to use yours, %s", advice)
	case isPython:
		return fmt.Sprintf("running %s, which PATH under sudo has first: to use your own PATH, %s", found, advice)
	}
	return ""
}

// invokerEnviron returns the environment that sudo was started with, if our parent, whose number is pid, is
// sudo: that of the shell, with what its user has set since. It is nil otherwise, as in a shell that sudo has
// started, and where sudo has replaced itself by the command.
func invokerEnviron(proc string, pid int) []string {
	of := filepath.Join(proc, strconv.Itoa(pid))
	comm, err := os.ReadFile(filepath.Join(of, "comm"))
	if err != nil || string(comm) != "sudo\n" {
		return nil
	}
	text, err := os.ReadFile(filepath.Join(of, "environ"))
	if err != nil || len(text) == 0 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
}

// variable returns the value of a variable of an environment.
func variable(env []string, name string) string {
	for _, one := range env {
		if value, ok := strings.CutPrefix(one, name+"="); ok {
			return value
		}
	}
	return ""
}

// lookIn returns the path of a program by a PATH; "" if it is in none of its directories. Relative
// directories are left out: sudo may have been started in another one.
func lookIn(path, program string) string {
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, program)
		if info, err := os.Stat(file); err == nil && filepath.IsAbs(dir) && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return file
		}
	}
	return ""
}

// sameFile reports whether two paths are of one file in one directory. That both are links to one file
// is not enough: the python of a virtual environment is a link to the system's.
func sameFile(a, b string) bool {
	if filepath.Base(a) != filepath.Base(b) {
		return false
	}
	x, err1 := os.Stat(filepath.Dir(a))
	y, err2 := os.Stat(filepath.Dir(b))
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}
