package zmtp

import (
	"cmp"
	"errors"
	"math"
	"time"
)

// Limits bounds what one connection may cost. The zero value of each field means its default.
type Limits struct {
	MaxFrame   int // bytes in one frame; default 64 KiB
	MaxFrames  int // frames in one message; default 8
	MaxMessage int // bytes in all frames of one message; default MaxFrame

	// HandshakeTimeout is for the whole handshake, not for each read; default 5 s.
	HandshakeTimeout time.Duration
	// IdleTimeout is for the arrival of each whole message or command, counted from the one before.
	// 0 means none: TCP keep-alive alone finds the dead. A listener whose peers speak regularly should set it,
	// or silent strangers can hold its places for ever.
	IdleTimeout time.Duration
	// WriteTimeout is for each message written; default 5 s.
	WriteTimeout time.Duration
}

func (l Limits) withDefaults() Limits {
	l.MaxFrame = cmp.Or(l.MaxFrame, 64<<10)
	l.MaxFrames = cmp.Or(l.MaxFrames, 8)
	l.MaxMessage = cmp.Or(l.MaxMessage, l.MaxFrame)
	l.HandshakeTimeout = cmp.Or(l.HandshakeTimeout, 5*time.Second)
	l.WriteTimeout = cmp.Or(l.WriteTimeout, 5*time.Second)
	return l
}

func (l Limits) validate() error {
	if l.MaxFrame < 0 || l.MaxFrames < 0 || l.MaxMessage < 0 {
		return errors.New("zmtp: negative size limit")
	}
	if l.HandshakeTimeout < 0 || l.IdleTimeout < 0 || l.WriteTimeout < 0 {
		return errors.New("zmtp: negative timeout")
	}
	return nil
}

// bucket is a token bucket, used by one goroutine.
type bucket struct {
	rate   float64 // tokens a second; +Inf means no limit
	burst  float64
	tokens float64
	last   time.Time
}

func newBucket(rate float64, burst int, now time.Time) bucket {
	return bucket{rate: rate, burst: float64(burst), tokens: float64(burst), last: now}
}

func (b *bucket) take(now time.Time) bool {
	if math.IsInf(b.rate, 1) {
		return true
	}
	b.tokens = min(b.burst, b.tokens+now.Sub(b.last).Seconds()*b.rate)
	b.last = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
