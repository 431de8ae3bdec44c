package prefix_test

import (
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/baton-llm/baton/internal/prefix"
)

// TestConcurrent has inserts, matches, joins, leaves, quotas and undos run
// against one another, and recounts in the end.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		cfg  prefix.Config
	}{
		{"roomy", prefix.Config{MaxBytes: 4 << 20}},
		{"tight memory", prefix.Config{MaxBytes: 64 << 10}},
		{"tight quota", prefix.Config{MaxBytes: 1 << 20, DefaultQuota: 8 << 10}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.cfg.Seed = 1
			c := concurrent{t: t, x: prefix.New(tt.cfg)}
			for i := range c.owners {
				c.replace(i)
			}
			var wg sync.WaitGroup
			for g := range 6 {
				wg.Go(func() { c.run(uint64(g)) })
			}
			wg.Wait()
			if _, err := c.x.Check(); err != nil {
				t.Error(err)
			}
			for i := range c.owners {
				c.x.Leave(*c.owners[i].Load())
			}
			for c.x.Stats().Stale > 0 {
				if _, err := c.x.Join(); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := c.x.Check(); err != nil {
				t.Error(err)
			}
			if s := c.x.Stats(); s.Entries != 0 || s.References != 0 {
				t.Errorf("all have left: %+v", s)
			}
		})
	}
}

type concurrent struct {
	t      *testing.T
	x      *prefix.Index
	owners [5]atomic.Pointer[prefix.Owner]
}

// replace gives a place to a new owner.
func (c *concurrent) replace(i int) {
	o, err := c.x.Join()
	if err != nil {
		c.t.Error(err)
		return
	}
	if old := c.owners[i].Swap(&o); old != nil {
		c.x.Leave(*old)
	}
}

func (c *concurrent) run(seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	var k prefix.Key
	var rows []prefix.Match
	var gone []prefix.Owner
	for range 2000 {
		i := rng.IntN(len(c.owners))
		o := *c.owners[i].Load()
		c.x.Start(&k, "model")
		k.WriteString(text("system", 1000))
		for range rng.IntN(4) {
			k.WriteString(text(strconv.Itoa(rng.IntN(3)), 128<<rng.IntN(5)))
		}
		switch rng.IntN(50) {
		case 0:
			c.replace(i)
			gone = append(gone, o)
		case 1:
			c.x.SetQuota(o, rng.Int64N(64<<10))
		case 2:
			c.x.Stats()
			c.x.Usage(o)
		case 3, 4, 5:
			undo := c.x.Insert(&k, o)
			rows = c.x.Match(&k, rows)
			undo.Undo()
		default:
			rows = c.x.Match(&k, rows)
			for j, r := range rows {
				if r.Bytes > k.Len() || r.Bytes <= 0 || j > 0 && r.Bytes > rows[j-1].Bytes {
					c.t.Errorf("row %d: %v", j, r)
				}
				for _, o := range gone {
					if r.Owner == o {
						c.t.Errorf("%v matches after it has left", o)
					}
				}
			}
			c.x.Insert(&k, o)
		}
	}
}

// TestMatchIsSteady matches what one owner holds while the keys of others come
// and go around it.
func TestMatchIsSteady(t *testing.T) {
	t.Parallel()
	x := prefix.New(prefix.Config{MaxBytes: 1 << 20, Seed: 1})
	reader, err := x.Join()
	if err != nil {
		t.Fatal(err)
	}
	known := text("known", 20<<10)
	var k prefix.Key
	x.Start(&k)
	k.WriteString(known)
	x.Insert(&k, reader)
	var done atomic.Bool
	var wg sync.WaitGroup
	for g := range 2 {
		o, err := x.Join()
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			var k prefix.Key
			for i := range 50 {
				x.Start(&k)
				k.WriteString(text(strconv.Itoa(1000*g+i), 1<<20))
				x.Insert(&k, o)
			}
			done.Store(true)
		})
	}
	matches := 0
	for ; !done.Load(); matches++ {
		if rows := x.Match(&k, nil); len(rows) != 1 || rows[0] != (prefix.Match{Owner: reader, Bytes: len(known)}) {
			t.Errorf("match %d: %v", matches, rows)
			break
		}
	}
	wg.Wait()
	if _, err := x.Check(); err != nil {
		t.Error(err)
	}
}
