package repotest

import (
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// machinePath matches a path of the machine that somebody works on. It is put
// together from pieces so that this file passes too.
var machinePath = regexp.MustCompile(`(^|[^\w.-])/(` + `root|` + `work|` + `home)/`)

func TestText(t *testing.T) {
	t.Parallel()
	for _, name := range files(t) {
		text := read(t, name)
		if strings.ContainsRune(text, 0) {
			continue // not text
		}
		for i, line := range strings.Split(text, "\n") {
			if machinePath.MatchString(line) {
				t.Errorf("%s:%d: a path of somebody's machine: %s", name, i+1, line)
			}
			if line != strings.TrimRight(line, " \t\r") && !inTestdata(name) {
				t.Errorf("%s:%d: space at the end of the line", name, i+1)
			}
		}
	}
}

func TestMachinePath(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"root", "work", "home"} {
		for text, want := range map[string]bool{
			"/" + dir + "/x":                 true,
			"see \"/" + dir + "/x\"":         true,
			"file:///" + dir + "/x":          true,
			"/" + dir + "er/x":               false,
			"https://a.example/" + dir:       false,
			"testdata/" + dir + "/x":         false,
			"${HOME}/x":                      false,
			"https://a.example/" + dir + "/": false,
		} {
			if got := machinePath.MatchString(text); got != want {
				t.Errorf("%q: %t, want %t", text, got, want)
			}
		}
	}
}

func TestLinks(t *testing.T) {
	t.Parallel()
	for _, name := range files(t) {
		if path.Ext(name) != ".md" || inTestdata(name) {
			continue
		}
		for _, target := range links(read(t, name)) {
			if wrong := deadLink(t, name, target); wrong != "" {
				t.Errorf("%s: link to %s: %s", name, target, wrong)
			}
		}
	}
}

// deadLink says what is wrong with a link in the document name, or "".
func deadLink(t *testing.T, name, target string) string {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		return err.Error()
	}
	if u.Scheme != "" || u.Host != "" {
		return "" // elsewhere; a test does not look there
	}
	file := name
	if fromRoot, ok := strings.CutPrefix(u.Path, "/"); ok {
		file = fromRoot
	} else if u.Path != "" {
		file = path.Join(path.Dir(name), u.Path)
	}
	if !filepath.IsLocal(file) {
		return "leads out of the repository"
	}
	if _, err := os.Stat(filepath.Join(root(t), file)); err != nil {
		return "no such file"
	}
	if u.Fragment != "" && path.Ext(file) == ".md" && !slices.Contains(anchors(read(t, file)), u.Fragment) {
		return "no such heading"
	}
	return ""
}

var (
	inlineLink = regexp.MustCompile(`\]\(<?((?:[^()\s<>]|\([^()\s]*\))+)>?(?:\s+"[^"]*")?\)`)
	refLink    = regexp.MustCompile(`^\s{0,3}\[[^\]]+\]:\s*<?(\S+?)>?(?:\s+"[^"]*")?$`)
	inlineCode = regexp.MustCompile("`[^`]*`")
	heading    = regexp.MustCompile(`^#{1,6}\s+(.+?)\s*#*$`)
	htmlAnchor = regexp.MustCompile(`<a\s+(?:name|id)="([^"]+)"`)
)

// prose yields the lines of a Markdown document outside of fenced code.
func prose(text string) []string {
	var lines []string
	fence := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		mark := strings.TrimLeft(line, " ")
		switch {
		case fence != "":
			if strings.HasPrefix(mark, fence) {
				fence = ""
			}
		case strings.HasPrefix(mark, "```"), strings.HasPrefix(mark, "~~~"):
			fence = mark[:3]
		default:
			lines = append(lines, line)
		}
	}
	return lines
}

// links returns the targets of a Markdown document's links.
func links(text string) []string {
	var targets []string
	for _, line := range prose(text) {
		line = inlineCode.ReplaceAllString(line, "code")
		for _, m := range inlineLink.FindAllStringSubmatch(line, -1) {
			targets = append(targets, m[1])
		}
		if m := refLink.FindStringSubmatch(line); m != nil {
			targets = append(targets, m[1])
		}
	}
	return targets
}

// anchors returns the fragments that a Markdown document can be linked at.
func anchors(text string) []string {
	var found []string
	seen := make(map[string]int)
	for _, line := range prose(text) {
		if m := heading.FindStringSubmatch(line); m != nil {
			a := slug(m[1])
			if n := seen[a]; n > 0 {
				found = append(found, fmt.Sprintf("%s-%d", a, n))
			} else {
				found = append(found, a)
			}
			seen[a]++
		}
		for _, m := range htmlAnchor.FindAllStringSubmatch(line, -1) {
			found = append(found, m[1])
		}
	}
	return found
}

// slug makes of a heading what a forge makes of it.
func slug(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, title)
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	const text = "# One thing\n## The `x`: a/b\n## One thing\n" +
		"[a](A.md) and [b](B.md#x \"title\"), ![c](<c.png>) `[no](no.md)` [d](d_(1).md)\n" +
		"```\n[no](no.md)\n# no\n```\n[ref]: e.md\n"
	if got, want := fmt.Sprint(links(text)), "[A.md B.md#x c.png d_(1).md e.md]"; got != want {
		t.Errorf("links: %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(anchors(text)), "[one-thing the-x-ab one-thing-1]"; got != want {
		t.Errorf("anchors: %s, want %s", got, want)
	}
}
