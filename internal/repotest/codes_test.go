package repotest

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestErrorCodes compares the codes of the router's errors, as the source spells
// them, with the table of docs/troubleshooting.md.
func TestErrorCodes(t *testing.T) {
	t.Parallel()
	// Codes that are put together from a role.
	source := []string{"no_prefill", "no_decode", "prefill_failed", "decode_failed", "worker_failed"}
	spelled := regexp.MustCompile(`(?:Code: |\.Code = |\.Code, e\.Message = |\.Status, e\.Code = [a-zA-Z.]+, |\bcode :?= )"([a-z_]+[a-z])"`)
	for _, file := range files(t) {
		inRouter := strings.HasPrefix(file, "internal/server/") || strings.HasPrefix(file, "internal/dispatch/") || strings.HasPrefix(file, "internal/openai/")
		if inRouter && strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, "_test.go") {
			for _, m := range spelled.FindAllStringSubmatch(read(t, file), -1) {
				source = append(source, m[1])
			}
		}
	}
	table, _, _ := strings.Cut(read(t, "docs/troubleshooting.md"), "\n## ")
	var page []string
	for line := range strings.Lines(table) {
		first, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		if strings.HasPrefix(line, "| `") {
			for _, m := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(first, -1) {
				page = append(page, m[1])
			}
		}
	}
	slices.Sort(source)
	slices.Sort(page)
	if diff := cmp.Diff(slices.Compact(source), page); diff != "" {
		t.Errorf("error codes, -source +docs/troubleshooting.md:\n%s", diff)
	}
}
