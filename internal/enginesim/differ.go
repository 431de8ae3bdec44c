package enginesim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// differ describes how the object got differs from want, "" if not at all. White
// space and the order of keys do not count; the digits of a number do.
func differ(want, got json.RawMessage) string {
	w, okW := asObject(want)
	g, okG := asObject(got)
	if !okW || !okG {
		return "no object"
	}
	var diffs []string
	for _, key := range slices.Sorted(maps.Keys(w)) {
		if v, ok := g[key]; !ok {
			diffs = append(diffs, key+" is missing")
		} else if canonical(v) != canonical(w[key]) {
			diffs = append(diffs, fmt.Sprintf("%s was %s, is %s", key, clip(string(w[key])), clip(string(v))))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(g)) {
		if _, ok := w[key]; !ok {
			diffs = append(diffs, key+" was added")
		}
	}
	return strings.Join(diffs, "; ")
}

// canonical writes a JSON value with sorted keys and numbers as they are.
func canonical(v json.RawMessage) string {
	d := json.NewDecoder(bytes.NewReader(v))
	d.UseNumber()
	var x any
	if d.Decode(&x) != nil {
		return string(v)
	}
	return string(encode(x))
}
