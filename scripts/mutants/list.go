package main

import (
	"errors"
	"fmt"
	"strings"
)

// mutant is one entry of the list: a way to break the source, and the tests
// that must notice.
type mutant struct {
	name string
	file string   // below the root, slash-separated
	old  string   // must stand in the file exactly once
	new  string   // stands there instead
	test []string // arguments of go test
	why  string   // the rule that the tests guard
}

// parse reads a list. An entry starts with its name; a value stands behind its
// key, or on the lines below it up to the next key, as it is. Lines before the
// first entry and lines that start with # between entries are comments:
//
//	name: release-once
//	file: internal/worker/lease.go
//	test: ./internal/worker -run TestLifecycle/L9
//	why: L9, a lease is returned exactly once
//	old:
//		if l.done.CompareAndSwap(false, true) {
//	new:
//		if true {
func parse(text string) ([]mutant, error) {
	var mutants []mutant
	names := make(map[string]bool)
	for _, e := range entries(text) {
		m, err := newMutant(e)
		switch {
		case err != nil:
			return nil, fmt.Errorf("entry %q: %w", e["name"], err)
		case names[m.name]:
			return nil, fmt.Errorf("entry %q stands there twice", m.name)
		}
		names[m.name] = true
		mutants = append(mutants, m)
	}
	return mutants, nil
}

// entry is the text of one entry by key.
type entry map[string]string

func entries(text string) []entry {
	var found []entry
	key := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if k, value, ok := splitKey(line); ok {
			if k == "name" {
				found = append(found, entry{})
			}
			key = k
			if len(found) > 0 {
				found[len(found)-1][key] = value
			}
			continue
		}
		if len(found) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		found[len(found)-1][key] += "\n" + line
	}
	return found
}

// splitKey splits "key: value". A key stands at the start of its line.
func splitKey(line string) (key, value string, ok bool) {
	key, value, ok = strings.Cut(line, ":")
	switch key {
	case "name", "file", "old", "new", "test", "why":
		return key, strings.TrimPrefix(value, " "), ok
	}
	return "", "", false
}

// block returns a value as it stands in the file: without the rest of the key's
// line if that is empty, and without the empty lines that end the entry.
func (e entry) block(key string) string {
	value := strings.TrimRight(e[key], "\n")
	return strings.TrimPrefix(value, "\n")
}

func newMutant(e entry) (mutant, error) {
	m := mutant{
		name: strings.TrimSpace(e["name"]),
		file: strings.TrimSpace(e["file"]),
		old:  e.block("old"),
		new:  e.block("new"),
		why:  strings.TrimSpace(e["why"]),
	}
	var err error
	m.test, err = words(e["test"])
	_, replaced := e["new"]
	switch {
	case err != nil:
	case m.name == "" || m.file == "" || m.old == "" || m.why == "" || len(m.test) == 0 || !replaced:
		err = errors.New("wants name, file, old, new, test and why")
	case m.old == m.new:
		err = errors.New("changes nothing")
	}
	return m, err
}

// words splits at spaces outside of single quotes.
func words(s string) ([]string, error) {
	var found []string
	for i, part := range strings.Split(s, "'") {
		if i%2 == 1 {
			found = append(found, part)
			continue
		}
		found = append(found, strings.Fields(part)...)
	}
	if strings.Count(s, "'")%2 == 1 {
		return nil, fmt.Errorf("a quote does not end: %s", s)
	}
	return found, nil
}

// apply returns src with the mutant's change made.
func (m mutant) apply(src string) (string, error) {
	if n := strings.Count(src, m.old); n != 1 {
		return "", fmt.Errorf("the old snippet stands in %s %d times, want once", m.file, n)
	}
	return strings.Replace(src, m.old, m.new, 1), nil
}
