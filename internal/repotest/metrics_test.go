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

// TestVLLMRouterMetricsTable compares the names that are served with those in
// the table of docs/migrating.md.
func TestVLLMRouterMetricsTable(t *testing.T) {
	t.Parallel()
	made := regexp.MustCompile(`(?:vllmRouterDesc|counter|histogram)\("([a-z_]+)"`)
	var source, page []string
	for _, file := range []string{"internal/admin/vllmrouter.go", "internal/server/vllmrouter.go"} {
		for _, m := range made.FindAllStringSubmatch(read(t, file), -1) {
			source = append(source, "vllm_router_"+m[1])
		}
	}
	for _, m := range regexp.MustCompile("`(vllm_router_[a-z_]+)`").FindAllStringSubmatch(read(t, "docs/migrating.md"), -1) {
		page = append(page, m[1])
	}
	slices.Sort(source)
	slices.Sort(page)
	if diff := cmp.Diff(source, page); diff != "" {
		t.Errorf("metrics, -source +docs/migrating.md:\n%s", diff)
	}
}
