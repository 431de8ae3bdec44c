package repotest

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMetricsPage compares the names in docs/metrics.md with those in the source.
func TestMetricsPage(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile(`"(baton_[a-z_]+)"`)
	row := regexp.MustCompile("(?m)^\\| `(baton_[a-z_]+)` \\|")
	var source, page []string
	for _, file := range files(t) {
		if strings.HasSuffix(file, ".go") && !strings.HasSuffix(file, "_test.go") {
			for _, m := range name.FindAllStringSubmatch(read(t, file), -1) {
				source = append(source, m[1])
			}
		}
	}
	for _, m := range row.FindAllStringSubmatch(read(t, "docs/metrics.md"), -1) {
		page = append(page, m[1])
	}
	slices.Sort(source)
	slices.Sort(page)
	if diff := cmp.Diff(slices.Compact(source), page); diff != "" {
		t.Errorf("metrics, -source +docs/metrics.md:\n%s", diff)
	}
}
