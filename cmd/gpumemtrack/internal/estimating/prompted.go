package estimating

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// imageOptions are the images in each text.
type imageOptions struct {
	count int
	size  pixels
}

func (o *imageOptions) flags(cmd *cobra.Command) {
	cmd.Flags().IntVar(&o.count, "images", 0, "`N` images in each text, which --seq counts too; 0: there are none")
	cmd.Flags().Var(&o.size, "image-size", "with --images: their `SIZE` as given in pixels, such as 1024x768")
}

// pixels is the size of an image. The zero value means that none was given.
type pixels struct{ width, height int }

// Set reads WIDTHxHEIGHT, or one number for a square.
func (p *pixels) Set(text string) error {
	width, height, both := strings.Cut(strings.ToLower(text), "x")
	if !both {
		height = width
	}
	w, err := strconv.Atoi(width)
	h, wrong := strconv.Atoi(height)
	if err != nil || wrong != nil || w < 1 || h < 1 {
		return errors.New("want a width and a height in pixels, such as 1280x720")
	}
	*p = pixels{w, h}
	return nil
}

// String returns what Set reads.
func (p *pixels) String() string {
	if *p == (pixels{}) {
		return ""
	}
	return fmt.Sprintf("%dx%d", p.width, p.height)
}

// Type is what the flag's value is called.
func (*pixels) Type() string { return "size" }

// soundOptions are the sounds in each text.
type soundOptions struct {
	count   int
	seconds float64
}

func (o *soundOptions) flags(cmd *cobra.Command) {
	cmd.Flags().IntVar(&o.count, "sounds", 0, "`N` sounds in each text, which --seq counts too; 0: there are none")
	cmd.Flags().Float64Var(&o.seconds, "seconds", 0, "with --sounds: `SECONDS` that each of them takes")
}

// usualImage and usualSeconds are the sizes of images and sounds in a prompt if none are given.
const (
	usualImage   = "1024x1024"
	usualSeconds = "30"
)
