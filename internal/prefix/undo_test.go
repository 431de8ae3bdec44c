package prefix_test

import (
	"strconv"
	"testing"

	"github.com/baton-llm/baton/internal/prefix"
)

func TestUndo(t *testing.T) {
	t.Parallel()
	base := text("base", 1024)
	turn := base + text("turn", 1024)
	tests := []struct {
		name   string
		before []string // inserts
		key    string   // the insert that is undone
		later  []string // inserts
		want   map[string]int
	}{
		{"all of it", nil, turn, nil, map[string]int{turn: 0}},
		{"what it added", []string{base}, turn, nil, map[string]int{turn: 1024}},
		{"nothing, it was known", []string{turn}, turn, nil, map[string]int{turn: 2048}},
		{"nothing, it was longer", []string{turn}, base, nil, map[string]int{turn: 2048}},
		{"nothing, used again", nil, turn, []string{turn}, map[string]int{turn: 2048}},
		{"nothing, extended", nil, base, []string{turn}, map[string]int{turn: 2048}},
		{"the end, the beginning used again", nil, turn, []string{base}, map[string]int{turn: 1024}},
		{"the end, the middle used again", nil, turn, []string{turn[:1500]}, map[string]int{turn: 1408}},
		{"the end, branched", nil, turn, []string{base + text("or", 256)}, map[string]int{turn: 1024, base + text("or", 256): 1280}},
		{"all of it, something else used", nil, turn, []string{text("other", 500)}, map[string]int{turn: 0, text("other", 500): 384}},
		{"less than a block", nil, "short", nil, map[string]int{base: 0}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, prefix.Config{MaxBytes: 1})
			o, other := f.join(), f.join()
			f.insert(other, turn)
			for _, text := range tt.before {
				f.insert(o, text)
			}
			var k prefix.Key
			f.Start(&k, "model")
			k.WriteString(tt.key)
			undo := f.Insert(&k, o)
			for _, text := range tt.later {
				f.insert(o, text)
			}
			for range 2 { // a second time makes no difference
				undo.Undo()
				for text, want := range tt.want {
					if got := f.match(text)[o]; got != want {
						t.Errorf("%.10q matches %d bytes, want %d", text, got, want)
					}
				}
				if got := f.match(turn)[other]; got != 2048 {
					t.Errorf("another owner matches %d bytes", got)
				}
				f.check()
			}
		})
	}
}

// TestUndoAfterEviction: a later insert used the beginning, and what it added to
// it has been evicted since. The beginning is still the later insert's.
func TestUndoAfterEviction(t *testing.T) {
	t.Parallel()
	f := newFixture(t, prefix.Config{MaxBytes: 1})
	o := f.join()
	base := text("base", 1024)
	turn := base + text("turn", 1024)
	var k prefix.Key
	f.Start(&k, "model")
	k.WriteString(base)
	undo := f.Insert(&k, o)
	f.insert(o, turn)
	f.SetQuota(o, 600)
	f.insert(o, turn)
	undo.Undo()
	if got := f.match(turn)[o]; got != 512 {
		t.Errorf("it matches %d bytes, want the 512 that the quota leaves", got)
	}
	f.check()
}

// TestUndoKeepsOrder: what an undone insert went on from is as recent as the
// insert was.
func TestUndoKeepsOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t, prefix.Config{MaxBytes: 1, DefaultQuota: 8 << 10})
	o := f.join()
	base := text("base", 1024)
	f.insert(o, base)
	for i := range 7 {
		f.insert(o, text(strconv.Itoa(i), 1024))
	}
	var k prefix.Key
	f.Start(&k, "model")
	k.WriteString(base + text("turn", 1024))
	f.Insert(&k, o).Undo()
	for i := range 6 {
		f.insert(o, text("more"+strconv.Itoa(i), 1024))
	}
	if got := f.match(base)[o]; got != 1024 {
		t.Errorf("it matches %d bytes", got)
	}
}

// TestExtendedIsNotHot: that a conversation's turn was repeated does not keep it
// once its next turn has grown cold.
func TestExtendedIsNotHot(t *testing.T) {
	t.Parallel()
	f := newFixture(t, prefix.Config{MaxBytes: 1, DefaultQuota: 8 << 10})
	o := f.join()
	base := text("base", 1024)
	f.insert(o, base)
	f.insert(o, base)
	f.insert(o, base+text("turn", 1024))
	for i := range 8 {
		f.insert(o, text(strconv.Itoa(i), 1024))
	}
	if got := f.match(base)[o]; got != 0 {
		t.Errorf("it matches %d bytes", got)
	}
}

// TestUndoOfAnotherKey uses the key for something else first, which is a
// mistake and must do no harm.
func TestUndoOfAnotherKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t, prefix.Config{MaxBytes: 1})
	o := f.join()
	for i, length := range []int{0, 768, 2048} {
		prompt := text(strconv.Itoa(i), 1024)
		undo := f.insert(o, prompt)
		f.key((prompt + text("b", 1024))[:length])
		undo.Undo()
		f.check()
	}
}

// TestLongKey records and takes back a key in several steps.
func TestLongKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t, prefix.Config{MaxBytes: 1})
	o := f.join()
	begin := text("a", 50<<10)
	long := begin + text("b", 1<<20-50<<10)
	f.insert(o, begin)
	undo := f.insert(o, long)
	if got := f.match(long)[o]; got != 1<<20 || f.Usage(o).Bytes != 1<<20 {
		t.Errorf("it matches %d bytes, usage %+v", got, f.Usage(o))
	}
	f.check()
	f.key(long).Hashes()
	undo.Undo()
	if got := f.match(long)[o]; got != 50<<10 {
		t.Errorf("after undo it matches %d bytes", got)
	}
	f.check()

	// Many short prompts make way for a long one as far as an insert may go, and
	// more with each.
	for i := range 50 {
		f.insert(o, text(strconv.Itoa(i), 2<<10))
	}
	f.SetQuota(o, f.Usage(o).Bytes)
	had := f.match(long)[o]
	for range 5 {
		f.insert(o, long)
		got := f.match(long)[o]
		if got < min(had+50<<10, 120<<10) {
			t.Errorf("it matches %d bytes after another insert, %d before", got, had)
		}
		had = got
	}
	f.check()
}
