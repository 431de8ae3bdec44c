package prefix_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/baton-llm/baton/internal/prefix"
)

// model is the naive index: for each owner all the beginnings it was sent, as
// text, one for each block.
type model struct {
	x      *prefix.Index
	owners []prefix.Owner
	left   []prefix.Owner
	sent   map[prefix.Owner]map[string]bool
	keys   []string // keys used before
	held   prefix.Holdings
}

// beginnings returns the parts of text that end at whole blocks.
func beginnings(text string) []string {
	var parts []string
	for i := 0; prefix.BlockEnd(i) <= len(text); i++ {
		parts = append(parts, text[:prefix.BlockEnd(i)])
	}
	return parts
}

// old draws a key that was used before.
func (m *model) old(t *rapid.T) string {
	return m.keys[rapid.IntRange(0, len(m.keys)-1).Draw(t, "old key")]
}

// text draws a key that probably shares a beginning with others.
func (m *model) text(t *rapid.T) string {
	if len(m.keys) > 0 && rapid.IntRange(0, 2).Draw(t, "old") == 0 {
		key := m.old(t)
		return key[:rapid.IntRange(0, len(key)).Draw(t, "cut")]
	}
	var b strings.Builder
	if len(m.keys) > 0 {
		key := m.old(t)
		b.WriteString(key[:rapid.IntRange(0, len(key)).Draw(t, "cut")])
	}
	for range rapid.IntRange(1, 6).Draw(t, "pieces") {
		piece := rapid.SampledFrom([]string{"a", "bc", "déf"}).Draw(t, "piece")
		b.WriteString(strings.Repeat(piece, rapid.SampledFrom([]int{1, 50, 200, 1000}).Draw(t, "times")))
	}
	return b.String()
}

func (m *model) key(text string) *prefix.Key {
	var k prefix.Key
	m.x.Start(&k, "model")
	k.WriteString(text)
	return &k
}

// matched returns the match of one owner.
func (m *model) matched(k *prefix.Key, o prefix.Owner) int {
	for _, r := range m.x.Match(k, nil) {
		if r.Owner == o {
			return r.Bytes
		}
	}
	return 0
}

// naive is what Match must return, from the recount.
func (m *model) naive(k *prefix.Key) map[prefix.Owner]int {
	rows := map[prefix.Owner]int{}
	for o, held := range m.held {
		for i, h := range k.Hashes() {
			if !held[h] {
				break
			}
			rows[o] = prefix.BlockEnd(i)
		}
	}
	return rows
}

// compare compares Match with the recount and with what was sent.
func (m *model) compare(t *rapid.T, text string) {
	k := m.key(text)
	rows := m.x.Match(k, nil)
	if !slices.IsSortedFunc(rows, func(a, b prefix.Match) int { return b.Bytes - a.Bytes }) {
		t.Fatalf("rows are not sorted: %v", rows)
	}
	want := m.naive(k)
	for _, r := range rows {
		if want[r.Owner] != r.Bytes {
			t.Fatalf("owner %v matches %d bytes, holds %d", r.Owner, r.Bytes, want[r.Owner])
		}
		if !m.sent[r.Owner][text[:r.Bytes]] {
			t.Fatalf("owner %v matches %d bytes that it was not sent", r.Owner, r.Bytes)
		}
	}
	if len(rows) != len(want) {
		t.Fatalf("%d owners match, want %d", len(rows), len(want))
	}
}

// recount checks the index and notes what it holds.
func (m *model) recount(t *rapid.T) {
	held, err := m.x.Check()
	if err != nil {
		t.Fatal(err)
	}
	m.held = held
}

// complete checks that the index holds all that was sent, as long as nothing
// has been forgotten.
func (m *model) complete(t *rapid.T) {
	held := m.held
	s := m.x.Stats()
	refs := 0
	for _, hashes := range held {
		refs += len(hashes)
	}
	if s.References != refs || s.Owners != len(m.owners) || s.Used > s.Bytes {
		t.Fatalf("stats %+v, want %d references, %d owners", s, refs, len(m.owners))
	}
	if s.Evicted > 0 || s.Short > 0 {
		return
	}
	for _, o := range m.owners {
		if got, want := len(held[o]), len(m.sent[o]); got != want {
			t.Fatalf("owner %v holds %d blocks, was sent %d", o, got, want)
		}
	}
}

func (m *model) owner(t *rapid.T) prefix.Owner {
	if len(m.owners) == 0 {
		t.Skip("nobody")
	}
	return rapid.SampledFrom(m.owners).Draw(t, "owner")
}

func (m *model) join(t *rapid.T) {
	o, err := m.x.Join()
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(m.owners, o) || slices.Contains(m.left, o) {
		t.Fatalf("owner %v was there before", o)
	}
	m.owners = append(m.owners, o)
	m.sent[o] = map[string]bool{}
}

func (m *model) leave(t *rapid.T) {
	o := m.owner(t)
	m.x.Leave(o)
	m.owners = slices.DeleteFunc(m.owners, func(p prefix.Owner) bool { return p == o })
	m.left = append(m.left, o)
	delete(m.sent, o)
}

// insert records a key and checks what it may forget and must record.
func (m *model) insert(t *rapid.T) {
	m.insertAs(t, m.owner(t), m.text(t))
}

func (m *model) insertAs(t *rapid.T, o prefix.Owner, text string) (prefix.Undo, *prefix.Key) {
	k := m.key(text)
	had := m.matched(k, o)
	if rapid.Bool().Draw(t, "unmatched") {
		k = m.key(text) // Insert has no hint from Match
	}
	before := m.x.Stats()
	undo := m.x.Insert(k, o)
	after := m.x.Stats()
	m.keys = append(m.keys, text)
	whole := beginnings(text)
	for _, part := range whole {
		m.sent[o][part] = true
	}
	got := m.matched(k, o)
	u := m.x.Usage(o)
	if got < had && u.Quota >= int64(had) {
		t.Fatalf("insert of %d bytes: held %d before and %d after", len(text), had, got)
	}
	short := len(whole) > 0 && got < len(whole[len(whole)-1])
	if noted := after.Short > before.Short; noted != short {
		t.Fatalf("insert of %d bytes recorded %d, noted as short %t", len(text), got, noted)
	}
	evicted := int(after.Evicted - before.Evicted)
	added := len(whole) - len(beginnings(text[:had]))
	if evicted > prefix.PerBlock*added+prefix.Batch {
		t.Fatalf("insert of %d blocks evicted %d", added, evicted)
	}
	if len(whole) > 0 && u.Bytes > u.Quota && evicted < prefix.Batch {
		t.Fatalf("holds %d bytes of %d, having evicted %d only", u.Bytes, u.Quota, evicted)
	}
	if after.Reclaimed > before.Reclaimed+prefix.Batch*2+prefix.PerBlock*uint64(added) {
		t.Fatalf("insert of %d blocks reclaimed %d", added, after.Reclaimed-before.Reclaimed)
	}
	return undo, k
}

// insertAndUndo takes back exactly what the insert added.
func (m *model) insertAndUndo(t *rapid.T) {
	o := m.owner(t)
	before := m.held[o]
	undo, _ := m.insertAs(t, o, m.text(t))
	m.recount(t)
	between := m.held[o]
	undo.Undo()
	m.recount(t)
	for h := range between {
		if before[h] != m.held[o][h] {
			t.Fatalf("owner %v holds block: before %t, after undo %t", o, before[h], m.held[o][h])
		}
	}
	if n := len(m.held[o]); n > len(before) {
		t.Fatalf("owner %v held %d blocks before, %d after undo", o, len(before), n)
	}
	m.forgetSent(o)
}

// forgetSent makes the model agree with an undo.
func (m *model) forgetSent(o prefix.Owner) {
	for part := range m.sent[o] {
		if hs := m.key(part).Hashes(); !m.held[o][hs[len(hs)-1]] {
			delete(m.sent[o], part)
		}
	}
}

// undoLater undoes an insert after others, which must lose nothing.
func (m *model) undoLater(t *rapid.T) {
	o := m.owner(t)
	undo, k := m.insertAs(t, o, m.text(t))
	var later []*prefix.Key
	for range rapid.IntRange(0, 3).Draw(t, "later") {
		_, k := m.insertAs(t, o, m.text(t))
		later = append(later, k)
	}
	var had []int
	for _, k := range later {
		had = append(had, m.matched(k, o))
	}
	undo.Undo()
	for i, k := range later {
		if got := m.matched(k, o); got != had[i] {
			t.Fatalf("undo took %d bytes of a later insert to %d", had[i], got)
		}
	}
	undo.Undo() // a second one finds nothing of its own
	for i, k := range later {
		if got := m.matched(k, o); got != had[i] {
			t.Fatalf("second undo took %d bytes of a later insert to %d", had[i], got)
		}
	}
	m.x.Start(k, "model") // a mistake, but it must do no harm
	k.WriteString(m.text(t))
	undo.Undo()
	m.recount(t)
	m.forgetSent(o)
}

func (m *model) quota(t *rapid.T) {
	o := m.owner(t)
	m.x.SetQuota(o, rapid.Int64Range(0, 40<<10).Draw(t, "quota"))
}

// stranger acts in the name of an owner that has left.
func (m *model) stranger(t *rapid.T) {
	if len(m.left) == 0 {
		t.Skip("nobody has left")
	}
	o := rapid.SampledFrom(m.left).Draw(t, "left")
	text := m.text(t)
	m.x.SetQuota(o, 0)
	m.x.Insert(m.key(text), o).Undo()
	m.x.Leave(o)
	if u := m.x.Usage(o); u != (prefix.Usage{}) {
		t.Fatalf("owner that left holds %+v", u)
	}
}

// share gives a key to many owners.
func (m *model) share(t *rapid.T) {
	text := m.text(t)
	for _, o := range m.owners {
		if rapid.Bool().Draw(t, "share") {
			m.insertAs(t, o, text)
		}
	}
}

// flood makes an owner forget what it was sent before.
func (m *model) flood(t *rapid.T) {
	o := m.owner(t)
	n := rapid.IntRange(1, 20).Draw(t, "prompts")
	for range n {
		text := string(rune('A'+len(m.keys)%60)) + strings.Repeat("x", 3000) + rapid.StringN(10, 10, 40).Draw(t, "end")
		m.insertAs(t, o, text)
	}
}

// TestModel does everything in any order and compares with the naive index. What
// an owner was sent may have been forgotten; nothing else may differ.
func TestModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, checkModel)
}

func FuzzModel(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(checkModel))
}

func checkModel(t *rapid.T) {
	x := prefix.New(prefix.Config{
		MaxBytes:     64 << 10,
		DefaultQuota: rapid.SampledFrom([]int64{0, 16 << 10, 1 << 20}).Draw(t, "default quota"),
		Seed:         1,
	})
	m := &model{x: x, sent: map[prefix.Owner]map[string]bool{}}
	for range rapid.SampledFrom([]int{1, 3, 30}).Draw(t, "owners") {
		m.join(t)
	}
	t.Repeat(map[string]func(*rapid.T){
		"join":         m.join,
		"leave":        m.leave,
		"insert":       m.insert,
		"insert again": m.insert,
		"insert more":  m.insert,
		"insert, undo": m.insertAndUndo,
		"undo later":   m.undoLater,
		"quota":        m.quota,
		"stranger":     m.stranger,
		"share":        m.share,
		"flood":        m.flood,
		"":             m.verify,
	})
}

// verify checks everything after each step.
func (m *model) verify(t *rapid.T) {
	m.recount(t)
	m.complete(t)
	m.compare(t, strings.Repeat("~", 200))
	if len(m.keys) > 0 {
		m.compare(t, m.old(t))
	}
}
