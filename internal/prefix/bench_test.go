package prefix_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/baton-llm/baton/internal/prefix"
)

var benchSizes = []int{2 << 10, 16 << 10, 128 << 10, 1 << 20}

func sizeName(n int) string {
	if n < 1<<20 {
		return fmt.Sprintf("%dKB", n>>10)
	}
	return fmt.Sprintf("%dMB", n>>20)
}

// prompts makes texts that have nothing in common: one text, of which the first
// bytes are overwritten.
type prompts struct {
	text []byte
	n    uint64
}

func newPrompts(size int) *prompts {
	p := &prompts{text: make([]byte, size)}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range p.text {
		p.text[i] = byte('a' + rng.IntN(26))
	}
	return p
}

func (p *prompts) fresh() []byte {
	p.n++
	return p.number(p.n)
}

func (p *prompts) number(n uint64) []byte {
	binary.LittleEndian.PutUint64(p.text, n)
	return p.text
}

// BenchmarkIndex hashes, matches and records a prompt, as a request does. Hot
// prompts are 64 that the index knows; cold ones it has never seen, and records
// at the cap; of 90 in 100 in the mix are hot.
func BenchmarkIndex(b *testing.B) {
	mixes := []struct {
		name string
		cold int // of 100
	}{{"hot", 0}, {"mix", 10}, {"cold", 100}}
	for _, mix := range mixes {
		for _, workers := range []int{4, 64, 1024} {
			for _, size := range benchSizes {
				b.Run(fmt.Sprintf("%s/workers=%d/%s", mix.name, workers, sizeName(size)), func(b *testing.B) {
					benchIndex(b, workers, size, mix.cold)
				})
			}
		}
	}
}

func benchIndex(b *testing.B, workers, size, cold int) {
	x := prefix.New(prefix.Config{Seed: 1})
	owners := make([]prefix.Owner, workers)
	for i := range owners {
		owners[i], _ = x.Join()
	}
	p := newPrompts(size)
	const hot = 64
	p.n = hot
	var k prefix.Key
	var rows []prefix.Match
	one := func(text []byte) {
		x.Start(&k, "model")
		k.Write(text)
		rows = x.Match(&k, rows)
		o := owners[p.n%uint64(len(owners))]
		if len(rows) > 0 {
			o = rows[0].Owner
		}
		x.Insert(&k, o)
	}
	if cold > 0 { // to the cap
		for s := x.Stats(); s.Used < s.Bytes*9/10; s = x.Stats() {
			for range 1000 {
				one(p.fresh())
			}
		}
	}
	for i := range hot {
		one(p.number(uint64(i)))
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	rng := rand.New(rand.NewPCG(1, 2))
	i := uint64(0)
	for b.Loop() {
		if cold > 0 && rng.IntN(100) < cold {
			one(p.fresh())
		} else {
			i++
			one(p.number(i % hot))
		}
	}
	s := x.Stats()
	b.ReportMetric(float64(s.Used)/float64(s.KeyBytes), "B/cached-B")
}

// BenchmarkShared has a system prompt of 4 KiB that every worker holds, and
// conversations of another 4 KiB that one worker holds each.
func BenchmarkShared(b *testing.B) {
	for _, workers := range []int{4, 64, 1024} {
		for _, known := range []bool{true, false} {
			b.Run(fmt.Sprintf("workers=%d/known=%t", workers, known), func(b *testing.B) {
				benchShared(b, workers, known)
			})
		}
	}
}

func benchShared(b *testing.B, workers int, known bool) {
	x := prefix.New(prefix.Config{Seed: 1})
	owners := make([]prefix.Owner, workers)
	for i := range owners {
		owners[i], _ = x.Join()
	}
	system, p := newPrompts(4<<10), newPrompts(4<<10)
	var k prefix.Key
	var rows []prefix.Match
	conversation := func(text []byte) {
		x.Start(&k, "model")
		k.Write(system.text)
		k.Write(text)
	}
	const hot = 4096
	for i := range uint64(hot) {
		conversation(p.number(i))
		x.Insert(&k, owners[i%uint64(workers)])
	}
	p.n = hot
	b.ReportAllocs()
	i := uint64(0)
	for b.Loop() {
		i++
		if known {
			conversation(p.number(i % hot))
		} else {
			conversation(p.fresh())
		}
		rows = x.Match(&k, rows)
		o := owners[i%uint64(workers)]
		if known {
			o = rows[0].Owner
		}
		x.Insert(&k, o)
	}
	b.ReportMetric(float64(len(rows)), "rows")
}

// BenchmarkParallel is the mix on all processors.
func BenchmarkParallel(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(sizeName(size), func(b *testing.B) {
			x := prefix.New(prefix.Config{Seed: 1})
			owners := make([]prefix.Owner, 64)
			for i := range owners {
				owners[i], _ = x.Join()
			}
			b.SetBytes(int64(size))
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				p := newPrompts(size)
				p.n = rand.Uint64() >> 1
				rng := rand.New(rand.NewPCG(p.n, 2))
				var k prefix.Key
				var rows []prefix.Match
				for i := uint64(0); pb.Next(); i++ {
					x.Start(&k, "model")
					if rng.IntN(100) < 10 {
						k.Write(p.fresh())
					} else {
						k.Write(p.number(i % 64))
					}
					rows = x.Match(&k, rows)
					o := owners[rng.IntN(len(owners))]
					if len(rows) > 0 {
						o = rows[0].Owner
					}
					x.Insert(&k, o)
				}
			})
		})
	}
}
