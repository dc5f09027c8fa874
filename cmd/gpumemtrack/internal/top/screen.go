//go:build !wasip1

package top

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/gdamore/tcell/v2"
)

// topScreen shows the latest sample until q is pressed, a signal comes, or ctx is done. It restores
// the terminal, even after a panic.
func topScreen(ctx context.Context, w *topWatch, interval time.Duration) error {
	screen, err := tcell.NewScreen()
	if err == nil {
		err = screen.Init()
	}
	if err != nil {
		return fmt.Errorf("top: the terminal cannot be used: %w: --once prints one picture", err)
	}
	defer screen.Fini()
	return topLoop(ctx, screen, w, min(interval, time.Second))
}

func topLoop(ctx context.Context, screen tcell.Screen, w *topWatch, every time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer w.detach()
	defer cancel()
	events := make(chan tcell.Event)
	go screen.ChannelEvents(events, ctx.Done())
	ticker := time.NewTicker(max(every, 100*time.Millisecond))
	defer ticker.Stop()
	var view topView
	for {
		drawTop(screen, &view, w.latest())
		select {
		case <-ctx.Done():
			return nil
		case what := <-w.panicked:
			return fmt.Errorf("top: a bug: %s", what)
		case <-ticker.C:
		case <-w.news:
		case e, ok := <-events:
			if !ok {
				return nil
			}
			switch e := e.(type) {
			case *tcell.EventResize:
				screen.Sync()
			case *tcell.EventKey:
				if view.press(keyOf(e), w.latest()) {
					return nil
				}
				if view.attach != 0 {
					w.toggle(ctx, view.attach, every)
					view.attach = 0
				}
			}
		}
	}
}

// keys names the keys that are not letters.
var keys = map[tcell.Key]rune{
	tcell.KeyCtrlC: ctrlC, tcell.KeyEscape: escape, tcell.KeyTab: tab, tcell.KeyUp: keyUp, tcell.KeyDown: keyDown,
	tcell.KeyPgUp: pageUp, tcell.KeyPgDn: pageDown, tcell.KeyHome: home, tcell.KeyEnd: end,
}

// keyOf returns a letter, or the name of another key; 0 if it has none.
func keyOf(e *tcell.EventKey) rune {
	if e.Key() == tcell.KeyRune {
		return e.Rune()
	}
	return keys[e.Key()]
}

// drawTop draws the lines on the screen.
func drawTop(screen tcell.Screen, view *topView, sample topSample) {
	width, height := screen.Size()
	screen.Clear()
	for y, l := range view.lines(sample, width, height) {
		x := 0
		for _, span := range l {
			style := tcellStyle(span.style)
			for _, r := range span.text {
				screen.SetContent(x, y, r, nil, style)
				x++
			}
		}
	}
	screen.Show()
}

// tcellStyle converts a style. With NO_COLOR set it has no colors.
func tcellStyle(s topStyle) tcell.Style {
	style := tcell.StyleDefault
	color := func(c tcell.Color) tcell.Style {
		if os.Getenv("NO_COLOR") != "" {
			return style
		}
		return style.Foreground(c)
	}
	switch s {
	case styleHead:
		return style.Bold(true)
	case styleQuiet:
		return style.Dim(true)
	case styleLow:
		return color(tcell.ColorGreen)
	case styleHigh:
		return color(tcell.ColorYellow)
	case styleFull:
		return color(tcell.ColorRed)
	case styleWarn:
		return color(tcell.ColorRed).Bold(true)
	case styleSelected:
		return style.Reverse(true)
	}
	return style
}
