//go:build race

package trackertest

const raceDetector = true
