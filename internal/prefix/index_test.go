package prefix_test

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/baton-llm/baton/internal/prefix"
)

// fixture is an index with helpers that fail the test.
type fixture struct {
	*prefix.Index
	t *testing.T
	k prefix.Key
}

func newFixture(t *testing.T, cfg prefix.Config) *fixture {
	t.Helper()
	cfg.Seed = 1
	if cfg.MaxBytes == 0 {
		cfg.MaxBytes = 4 << 20
	}
	return &fixture{Index: prefix.New(cfg), t: t}
}

func (f *fixture) join() prefix.Owner {
	f.t.Helper()
	o, err := f.Join()
	if err != nil {
		f.t.Fatal(err)
	}
	return o
}

func (f *fixture) key(text string) *prefix.Key {
	f.Start(&f.k, "model")
	f.k.WriteString(text)
	return &f.k
}

func (f *fixture) insert(o prefix.Owner, text string) prefix.Undo {
	return f.Insert(f.key(text), o)
}

// match returns what each owner matches of a text.
func (f *fixture) match(text string) map[prefix.Owner]int {
	rows := map[prefix.Owner]int{}
	for _, r := range f.Match(f.key(text), nil) {
		rows[r.Owner] = r.Bytes
	}
	return rows
}

func (f *fixture) check() prefix.Holdings {
	f.t.Helper()
	held, err := f.Check()
	if err != nil {
		f.t.Fatal(err)
	}
	return held
}

// text returns n bytes that have nothing in common with those of another name.
func text(name string, n int) string {
	return name + "." + strings.Repeat("x", n-len(name)-1)
}

func TestTurnsExtend(t *testing.T) {
	t.Parallel()
	f := newFixture(t, prefix.Config{})
	a, b := f.join(), f.join()
	first := text("user: hello", 1000)
	second := first + text("assistant: hi", 1000)
	f.insert(a, first)
	f.insert(b, first)
	f.insert(a, second)
	tests := []struct {
		name, text string
		want       map[prefix.Owner]int
	}{
		{"both turns", second, map[prefix.Owner]int{a: 1920, b: 896}},
		{"the next turn", second + text("user: bye", 1000), map[prefix.Owner]int{a: 1920, b: 896}},
		{"the first turn", first, map[prefix.Owner]int{a: 896, b: 896}},
		{"the first turn and another one", first + text("user: or", 1000), map[prefix.Owner]int{a: 896, b: 896}},
		{"half a turn", first[:500] + "!", map[prefix.Owner]int{a: 384, b: 384}},
		{"less than a block", first[:127], map[prefix.Owner]int{}},
		{"nothing", "", map[prefix.Owner]int{}},
		{"another one", text("user: good day", 1000), map[prefix.Owner]int{}},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(f.match(tt.text), tt.want, cmp.AllowUnexported(prefix.Owner{})); diff != "" {
			t.Errorf("%s: (-got +want)\n%s", tt.name, diff)
		}
	}
	f.Start(&f.k, "another model")
	f.k.WriteString(second)
	if rows := f.Match(&f.k, nil); len(rows) > 0 {
		t.Errorf("another root matches: %v", rows)
	}
	if u := f.Usage(a); u.Bytes != 1920 || u.References != 15 {
		t.Errorf("usage %+v, want 1920 bytes in 15 references: what turns share counts once", u)
	}
	f.check()
}

// TestNobody does everything in the name of owners that are none.
func TestNobody(t *testing.T) {
	t.Parallel()
	f := newFixture(t, prefix.Config{})
	gone := f.join()
	f.Leave(gone)
	another := prefix.New(prefix.Config{MaxBytes: 1})
	for range 300 {
		if _, err := another.Join(); err != nil {
			t.Fatal(err)
		}
	}
	foreign, err := another.Join()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []prefix.Owner{{}, gone, foreign} {
		f.insert(o, text("a", 1000)).Undo()
		f.SetQuota(o, 5)
		f.Leave(o)
		if u := f.Usage(o); u != (prefix.Usage{}) {
			t.Errorf("%v: usage %+v", o, u)
		}
	}
	var never prefix.Key
	o := f.join()
	f.Insert(&never, o).Undo()
	if rows := f.Match(&never, nil); len(rows) > 0 {
		t.Errorf("a key that was never started matches: %v", rows)
	}
	prefix.Undo{}.Undo()
	if s := f.Stats(); s.Entries != 0 || s.Owners != 1 {
		t.Errorf("stats %+v", s)
	}
	f.check()
}

// TestManyOwners has 1,024 workers that share a system prompt, each with turns of
// its own length after it.
func TestManyOwners(t *testing.T) {
	t.Parallel()
	f := newFixture(t, prefix.Config{})
	whole := text("system", 40<<10)
	owners := make([]prefix.Owner, 1024)
	want := map[prefix.Owner]int{}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range owners {
		owners[i] = f.join()
		blocks := 30 + rng.IntN(60)
		want[owners[i]] = prefix.BlockEnd(blocks - 1)
		f.insert(owners[i], whole[:prefix.BlockEnd(blocks-1)])
	}
	rows := f.Match(f.key(whole), nil)
	for i, r := range rows {
		if r.Bytes != want[r.Owner] || i > 0 && r.Bytes > rows[i-1].Bytes {
			t.Fatalf("row %d is %v, want %d", i, r, want[r.Owner])
		}
		delete(want, r.Owner)
	}
	if len(want) > 0 {
		t.Fatalf("%d owners do not match", len(want))
	}
	f.check()

	// All but one leave, in any order; what is left is what that one holds.
	rng.Shuffle(len(owners), func(i, j int) { owners[i], owners[j] = owners[j], owners[i] })
	for _, o := range owners[1:] {
		f.Leave(o)
	}
	if rows := f.Match(f.key(whole), nil); len(rows) != 1 || rows[0].Owner != owners[0] {
		t.Fatalf("one owner is left, %d match", len(rows))
	}
	for f.Stats().Stale > 0 {
		f.Leave(f.join())
	}
	f.check()
	if s := f.Stats(); s.Entries != s.References {
		t.Errorf("%d entries of one owner, which holds %d", s.Entries, s.References)
	}
}

// TestTailBeforeHead lets conversations that share a system prompt grow until
// the quota is used up, several times over.
func TestTailBeforeHead(t *testing.T) {
	t.Parallel()
	f := newFixture(t, prefix.Config{DefaultQuota: 64 << 10})
	o := f.join()
	system := text("system", 4<<10)
	kept := system + text("kept", 4<<10)
	f.insert(o, kept)
	for i := range 200 {
		f.insert(o, system+text(strconv.Itoa(i), 2<<10))
		if i%8 == 0 {
			f.insert(o, kept) // it is in use
		}
		if got := f.match(system)[o]; got != len(system) {
			t.Fatalf("conversation %d: %d bytes of the system prompt are left", i, got)
		}
		if got := f.match(kept)[o]; got != len(kept) {
			t.Fatalf("conversation %d: %d bytes are left of one that is in use", i, got)
		}
		f.check()
	}
	last, before := system+text("199", 2<<10), system+text("150", 2<<10)
	if got := f.match(last)[o]; got != len(last) {
		t.Errorf("the latest conversation matches %d bytes", got)
	}
	if got := f.match(before)[o]; got != len(system) {
		t.Errorf("a conversation long gone matches %d bytes", got)
	}
	if u := f.Usage(o); u.Bytes > u.Quota || u.Bytes < u.Quota-2<<10 {
		t.Errorf("usage %+v", u)
	}
}

func TestQuotaShrinksLazily(t *testing.T) {
	t.Parallel()
	f := newFixture(t, prefix.Config{})
	o, other := f.join(), f.join()
	for i := range 100 {
		f.insert(o, text(strconv.Itoa(i), 2<<10))
		f.insert(other, text(strconv.Itoa(i), 2<<10))
	}
	f.SetQuota(o, 20<<10)
	if u := f.Usage(o); u.Bytes != 200<<10 || u.Quota != 20<<10 {
		t.Fatalf("usage %+v: setting a quota forgets nothing", u)
	}
	hot := text("99", 2<<10)
	for inserts := 0; f.Usage(o).Bytes > 20<<10; inserts++ {
		before := f.Stats().Evicted
		f.insert(o, hot)
		if n := f.Stats().Evicted - before; n > prefix.Batch {
			t.Fatalf("one insert evicted %d", n)
		}
		if inserts > 1600/prefix.Batch {
			t.Fatal("it does not shrink")
		}
		f.check()
	}
	if got := f.match(hot)[o]; got != len(hot) {
		t.Errorf("the prompt in use matches %d bytes", got)
	}
	if u := f.Usage(other); u.Bytes != 200<<10 {
		t.Errorf("another owner's usage is %+v", u)
	}
	evicted := f.Stats().Evicted
	f.SetQuota(other, 200<<10+1000) // room for the beginning of another one
	next := f.join()
	f.SetQuota(next, 1000)
	f.insert(next, hot)
	if got := f.match(hot)[next]; got != 896 || f.Stats().Evicted != evicted {
		t.Errorf("with a quota of 1000 it matches %d bytes and evicted %d", got, f.Stats().Evicted-evicted)
	}
	f.SetQuota(o, 1000) // less than one prompt
	for range 1 + 160/prefix.Batch {
		f.insert(o, hot)
	}
	if got := f.match(hot)[o]; got != 896 || f.Usage(o).Bytes != 896 {
		t.Errorf("with a quota of 1000 it matches %d bytes, usage %+v", got, f.Usage(o))
	}
	f.SetQuota(o, 0)
	short := f.Stats().Short
	f.insert(o, hot)
	f.insert(o, text("new", 1000))
	if u := f.Usage(o); u.Bytes != 0 || f.Stats().Short != short+2 {
		t.Errorf("with no quota: usage %+v, %d short", u, f.Stats().Short-short)
	}
	f.check()
}

// TestLeave: a departed owner never matches, also under the next use of its
// slot, and its memory comes back.
func TestLeave(t *testing.T) {
	t.Parallel()
	f := newFixture(t, prefix.Config{})
	stays, goes := f.join(), f.join()
	shared, own := text("shared", 8<<10), text("own", 1<<20)
	f.insert(goes, shared)
	f.insert(stays, shared)
	f.insert(goes, own)
	before := f.Stats()
	f.Leave(goes)
	f.Leave(goes)
	if s := f.Stats(); s.Entries != before.Entries || s.Stale != 40+296 || s.Owners != 1 || s.References != 40 {
		t.Fatalf("leaving walked the index: %+v, before %+v", s, before)
	}
	if rows := f.match(own); len(rows) > 0 {
		t.Fatalf("%v matches", rows)
	}
	for range 3 {
		next := f.join()
		if rows := f.match(shared); len(rows) != 1 || rows[stays] == 0 || next == goes {
			t.Fatalf("matches %v, owner %v then %v", rows, goes, next)
		}
	}
	for i := 0; f.Stats().Stale > 0; i++ {
		f.insert(stays, text(strconv.Itoa(i), 128))
		f.check()
		if i > 336 {
			t.Fatal("stale references are not reclaimed")
		}
	}
	if s := f.Stats(); s.Entries != s.References || s.Reclaimed != 336 {
		t.Errorf("%+v: entries with no owner are left", s)
	}
	if got := f.match(shared)[stays]; got != len(shared) {
		t.Errorf("who stays matches %d bytes", got)
	}
}

// TestSlotReuse uses one slot more often than 16 bits can count.
func TestSlotReuse(t *testing.T) {
	t.Parallel()
	f := newFixture(t, prefix.Config{MaxBytes: 1})
	prompt, other := text("a", 300), text("b", 300)
	first := f.join()
	f.Leave(first)
	for i := range 70_000 {
		o := f.join()
		if o.Slot() != first.Slot() || o == first {
			t.Fatalf("use %d is %v, the first was %v", i, o, first)
		}
		f.insert(first, other)
		if rows := f.Match(&f.k, nil); len(rows) > 0 {
			t.Fatalf("use %d: %v has what a stale owner was sent", i, rows)
		}
		if rows := f.Match(f.key(prompt), nil); len(rows) > 0 {
			t.Fatalf("use %d begins with %v", i, rows)
		}
		f.Insert(&f.k, o)
		if rows := f.Match(&f.k, nil); len(rows) != 1 || rows[0].Owner != o {
			t.Fatalf("use %d: %v", i, rows)
		}
		f.Leave(o)
	}
	f.check()
}

func TestFull(t *testing.T) {
	t.Parallel()
	f := newFixture(t, prefix.Config{MaxBytes: 1})
	seen := map[int]bool{}
	var o prefix.Owner
	for range prefix.MaxSlots {
		o = f.join()
		if seen[o.Slot()] || o.Slot() < 1 || o.Slot() > prefix.MaxSlots {
			t.Fatalf("slot %d again, or no slot", o.Slot())
		}
		seen[o.Slot()] = true
	}
	if _, err := f.Join(); !errors.Is(err, prefix.ErrFull) {
		t.Fatalf("join: %v, want %v", err, prefix.ErrFull)
	}
	// The last slot works, and comes back.
	prompt := text("a", 1000)
	f.insert(o, prompt)
	if got := f.match(prompt)[o]; got != 896 {
		t.Errorf("the last owner matches %d bytes", got)
	}
	f.Leave(o)
	if got := f.join(); got.Slot() != o.Slot() || got == o {
		t.Errorf("joined as %v after %v left", got, o)
	}
}

// TestNewcomer joins when the memory is full of others' references, and gets its
// share from who has most.
func TestNewcomer(t *testing.T) {
	t.Parallel()
	f := newFixture(t, prefix.Config{MaxBytes: 1 << 20})
	big, small := f.join(), f.join()
	for i := range 30 {
		f.insert(small, text("small"+strconv.Itoa(i), 2<<10))
	}
	for i := range 3000 {
		f.insert(big, text("big"+strconv.Itoa(i), 2<<10))
	}
	f.check()
	had := f.Usage(big).References
	if s := f.Stats(); s.Used < s.Bytes*99/100 || f.Usage(small).References != 480 {
		t.Fatalf("%+v, %+v: the memory should be full and the small owner whole", s, f.Usage(small))
	}
	newcomer := f.join()
	for i := range 3000 {
		prompt := text("new"+strconv.Itoa(i), 2<<10)
		f.insert(newcomer, prompt)
		if got := f.match(prompt)[newcomer]; got != len(prompt) {
			t.Fatalf("prompt %d is recorded to %d bytes", i, got)
		}
	}
	f.check()
	n := f.Usage(newcomer).References
	if n < had/3 || n > had*2/3 || f.Usage(small).References != 480 {
		t.Errorf("newcomer has %d references, the small owner %d, the big one %d of %d",
			n, f.Usage(small).References, f.Usage(big).References, had)
	}
	// What a departed owner leaves is taken before anything that is in use.
	f.Leave(newcomer)
	evicted := f.Stats().Evicted
	for i := range f.Stats().Stale / 16 {
		f.insert(big, text("more"+strconv.Itoa(i), 2<<10))
	}
	if got := f.Stats().Evicted; got != evicted {
		t.Errorf("%d references evicted while there were stale ones", got-evicted)
	}
	f.check()
}

// TestSharedPrefixStays has random endings of one shared beginning come and go,
// with the workers that they were for.
func TestSharedPrefixStays(t *testing.T) {
	t.Parallel()
	f := newFixture(t, prefix.Config{MaxBytes: 1 << 20})
	stays := f.join()
	shared := text("system", 8<<10)
	f.insert(stays, shared)
	rng := rand.New(rand.NewPCG(1, 2))
	owners := make([]prefix.Owner, 20)
	for i := range owners {
		owners[i] = f.join()
	}
	for i := range 20_000 {
		at := rng.IntN(len(owners))
		if rng.IntN(200) == 0 {
			f.Leave(owners[at])
			owners[at] = f.join()
		}
		f.insert(owners[at], shared+text(strconv.Itoa(i), 512*(1+rng.IntN(20))))
		if got := f.match(shared)[stays]; got != len(shared) {
			t.Fatalf("after %d prompts %d bytes of the shared beginning are left", i, got)
		}
	}
	f.check()
	for _, o := range owners {
		f.Leave(o)
	}
	for i := 0; f.Stats().Stale > 0; i++ {
		if _, err := f.Join(); err != nil {
			t.Fatal(err)
		}
	}
	f.check()
	s := f.Stats()
	if s.Entries != 40 || s.References != 40 {
		t.Errorf("%+v, want the 40 blocks of the shared beginning", s)
	}
}

// TestMillionPrompts is case 3.17: a million distinct prompts of 8 KB leave the
// memory as it was, and no insert does more than its share of work.
func TestMillionPrompts(t *testing.T) {
	n, memory := 1_000_000, int64(2<<20)
	if testing.Short() || raceEnabled {
		n, memory = 5000, 1<<20
	}
	f := newFixture(t, prefix.Config{MaxBytes: memory})
	owners := make([]prefix.Owner, 8)
	for i := range owners {
		owners[i] = f.join()
	}
	p := newPrompts(8 << 10)
	insert := func(i int) {
		f.Start(&f.k, "model")
		f.k.Write(p.fresh())
		f.Insert(&f.k, owners[i%len(owners)])
	}
	for i := range memory / 1024 {
		insert(int(i))
	}
	full := f.Stats()
	if full.Bytes > memory || full.Used < full.Bytes*99/100 {
		t.Fatalf("%+v: want it full within 8 MiB", full)
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range n {
		evicted := uint64(0)
		if i%1000 == 0 {
			evicted = f.Stats().Evicted
		}
		insert(i)
		if i%1000 == 0 {
			if s := f.Stats(); s.Evicted-evicted > 40*prefix.PerBlock+prefix.Batch || s.Bytes != full.Bytes || s.Used > s.Bytes {
				t.Fatalf("prompt %d evicted %d: %+v", i, s.Evicted-evicted, s)
			}
			if got := f.Match(&f.k, nil); len(got) != 1 || got[0].Bytes != 8<<10 {
				t.Fatalf("prompt %d matches %v", i, got)
			}
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 256<<10 {
		t.Errorf("heap has grown by %d bytes", grown)
	}
	if s := f.Stats(); s.Short != 0 {
		t.Errorf("%d prompts were not recorded whole", s.Short)
	}
	f.check()
}

// TestAllocations: matching and inserting allocate nothing, hot or cold.
func TestAllocations(t *testing.T) {
	f := newFixture(t, prefix.Config{MaxBytes: 256 << 10})
	owners := make([]prefix.Owner, 100)
	system := text("system", 4<<10)
	p := newPrompts(4 << 10)
	for i := range owners {
		owners[i] = f.join()
		f.insert(owners[i], system)
	}
	var rows []prefix.Match
	i := 0
	got := testing.AllocsPerRun(2000, func() {
		i++
		f.Start(&f.k, "model", "adapter")
		f.k.WriteString(system)
		if i%2 == 0 {
			f.k.Write(p.fresh())
		} else {
			f.k.Write(p.number(p.n))
		}
		rows = f.Match(&f.k, rows)
		f.Insert(&f.k, owners[p.n%uint64(len(owners))])
		if i%8 == 0 {
			f.Insert(&f.k, owners[i%len(owners)]).Undo()
		}
	})
	if got != 0 {
		t.Errorf("%v allocations per request", got)
	}
	if f.Stats().Evicted == 0 {
		t.Error("nothing was evicted: the test is too small")
	}
}
