package main

import (
	"fmt"
	"os"
	"strings"
)

// statusLine is a line that stays on a terminal. Alone it stands where the cursor
// is. Beside a program that writes to the terminal it is in the last row,
// which is taken out of what scrolls (DECSTBM), as apt's progress bar does: else
// the program's lines would go on where this one ends.
type statusLine struct {
	tty    *os.File
	beside bool
	rows   int  // of the terminal, when the last one was taken
	taken  bool // it was, once
}

const (
	saveCursor, restoreCursor = "\x1b7", "\x1b8"

	// lineDown and lineUp keep the column. At the bottom the first one scrolls.
	lineDown, lineUp = "\x1bD", "\x1b[A"
)

// show draws the line, unless a program beside it has the terminal to itself. Such
// a program resets the rows that scroll, so they are taken again after it.
func (s *statusLine) show(line string) {
	if s.beside && isRaw(s.tty) {
		s.rows = 0
		return
	}
	rows := sizeOf(s.tty).height
	if !s.beside || rows < 3 {
		fmt.Fprint(s.tty, clearLine, line)
		return
	}
	take := ""
	if rows != s.rows {
		take = fmt.Sprintf(lineDown+saveCursor+"\x1b[1;%dr"+restoreCursor+lineUp, rows-1)
		s.rows, s.taken = rows, true
	}
	fmt.Fprint(s.tty, take+s.inLastRow(line))
}

// remove leaves the cursor at the beginning of a line: of the next one if the
// program, or the terminal with its ^C, has begun this one.
func (s *statusLine) remove() {
	end := clearLine
	if s.beside { // so many blanks move on from any column but the first
		end = strings.Repeat(" ", sizeOf(s.tty).width) + clearLine
	}
	if s.taken {
		s.rows = sizeOf(s.tty).height
		end = saveCursor + "\x1b[r" + restoreCursor + s.inLastRow("") + end
	}
	fmt.Fprint(s.tty, end)
}

func (s *statusLine) inLastRow(line string) string {
	return fmt.Sprintf(saveCursor+"\x1b[%d;1H\x1b[2K%s"+restoreCursor, s.rows, line)
}
