package main

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestExpandLists(t *testing.T) {
	t.Parallel()
	lists := map[string]bool{"worker-urls": true, "decode": false}
	tests := []struct{ name, in, want string }{
		{"nothing", "", ""},
		{"no list", "--port 1 --host h", "--port 1 --host h"},
		{"one", "--decode a", "--decode a"},
		{"three", "--worker-urls a b c", "--worker-urls a --worker-urls b --worker-urls c"},
		{"until the next flag", "--worker-urls a b --port 1", "--worker-urls a --worker-urls b --port 1"},
		{"until a short flag", "--worker-urls a -h b", "--worker-urls a -h b"},
		{"repeated", "--decode a b --worker-urls c --decode d", "--decode a --decode b --worker-urls c --decode d"},
		{"joined", "--worker-urls=a --decode=b", "--worker-urls=a --decode=b"},
		{"empty at the end", "--port 1 --worker-urls", "--port 1"},
		{"empty before a flag", "--worker-urls --port 1", "--port 1"},
		{"may not be empty", "--worker-urls a --decode", "error"},
		{"may not be empty before a flag", "--decode --port 1", "error"},
		{"other flags with such a name", "--decode-policy a b", "--decode-policy a b"},
		{"no dashes", "decode a", "decode a"},
	}
	for _, tt := range tests {
		got, err := expandLists(strings.Fields(tt.in), lists)
		text := strings.Join(got, " ")
		if err != nil {
			text = "error"
			if !errors.As(err, new(usageError)) || !strings.Contains(err.Error(), "--decode") {
				t.Errorf("%s: %v, want a usage error that names the flag", tt.name, err)
			}
		}
		if text != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, text, tt.want)
		}
	}
}

// TestCutPrefill is vllm-router's rule: the next argument must exist and not
// begin with a dash, and the one after it belongs to it if it is "none" or a
// port. Beyond that, further URLs may follow.
func TestCutPrefill(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, in string
		rest     string
		prefills []prefill
		fails    bool
	}{
		{"none of them", "--decode d", "--decode d", nil, false},
		{"url", "--prefill p", "", []prefill{{"p", ""}}, false},
		{"port", "--prefill p 8998", "", []prefill{{"p", "8998"}}, false},
		{"none", "--prefill p none", "", []prefill{{"p", "none"}}, false},
		{"None", "--prefill p NoNe --x", "--x", []prefill{{"p", "NoNe"}}, false},
		{"largest port", "--prefill p 65535", "", []prefill{{"p", "65535"}}, false},
		{"port 0", "--prefill p 0", "", []prefill{{"p", "0"}}, false},
		{"no port", "--prefill p 65536", "65536", []prefill{{"p", ""}}, false},
		{"negative", "--prefill p -1", "-1", []prefill{{"p", ""}}, false},
		{"a word", "--prefill p nonesuch", "nonesuch", []prefill{{"p", ""}}, false},
		{"hexadecimal", "--prefill p 0x10", "0x10", []prefill{{"p", ""}}, false},
		{"a flag follows", "--prefill p --decode d", "--decode d", []prefill{{"p", ""}}, false},
		{"a port alone is an argument", "--decode d 8998", "--decode d 8998", nil, false},
		{"port taken once", "--prefill p 1 2", "2", []prefill{{"p", "1"}}, false},
		{"a number is a URL too", "--prefill 8998", "", []prefill{{"8998", ""}}, false},
		{
			"several", "--a b --prefill p 1 --prefill q --c --prefill r none d", "--a b --c d",
			[]prefill{{"p", "1"}, {"q", ""}, {"r", "none"}},
			false,
		},
		{
			"a list", "--prefill http://a 1 http://b https://c none --x http://d", "--x http://d",
			[]prefill{{"http://a", "1"}, {"http://b", ""}, {"https://c", "none"}},
			false,
		},
		{"joined", "--prefill=p --prefill=q 8998 --x", "--x", []prefill{{"p", ""}, {"q", "8998"}}, false},
		{"joined, empty", "--prefill=", "", []prefill{{"", ""}}, false},
		{"another flag", "--prefill-policy p 1", "--prefill-policy p 1", nil, false},
		{"at the end", "--x --prefill", "", nil, true},
		{"before a flag", "--prefill --decode d", "", nil, true},
		{"before a short flag", "--prefill -x", "", nil, true},
	}
	for _, tt := range tests {
		rest, prefills, err := cutPrefill(strings.Fields(tt.in))
		if tt.fails {
			if !errors.As(err, new(usageError)) || !strings.Contains(err.Error(), "--prefill") {
				t.Errorf("%s: %v, want a usage error that names the flag", tt.name, err)
			}
			continue
		}
		if got := strings.Join(rest, " "); err != nil || got != tt.rest || !slices.Equal(prefills, tt.prefills) {
			t.Errorf("%s: left %q, prefills %v, %v, want %q, %v", tt.name, got, prefills, err, tt.rest, tt.prefills)
		}
	}
}

func TestPrefillPort(t *testing.T) {
	t.Parallel()
	for port, want := range map[string]bool{"": false, "none": false, "NONE": false, "8998": true, "0": true} {
		if got := (prefill{"p", port}).hasPort(); got != want {
			t.Errorf("port %q: %t, want %t", port, got, want)
		}
	}
}

func TestUnknownFlags(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--polcy", "random"}, "unknown flag: --polcy; did you mean --policy?"},
		{[]string{"--worker-url", "http://a"}, "unknown flag: --worker-url; did you mean --worker-urls?"},
		{[]string{"--worker_urls=http://a"}, "unknown flag: --worker_urls; did you mean --worker-urls?"},
		{[]string{"--prefil", "http://a"}, "unknown flag: --prefil; did you mean --prefill?"},
		{[]string{"--health-check-interval", "5"}, "unknown flag: --health-check-interval; did you mean --health-check-interval-secs?"},
		{[]string{"--tensor-parallel-size", "2"}, "unknown flag: --tensor-parallel-size"},
		{[]string{"--x"}, "unknown flag: --x"},
		{[]string{"-p", "1"}, "unknown shorthand flag: 'p' in -p"},
		// Known flags are not said to be unknown, whatever else is wrong.
		{[]string{"--api-key", "--secret", "--port", "x"}, `invalid argument "x" for "--port" flag: must be a non-negative integer`},
		{[]string{"--port"}, "flag needs an argument: --port"},
		{[]string{"--port", "1", "extra"}, `unexpected argument "extra"`},
	} {
		flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
		newServeFlags("serve").register(flags)
		err := parse(flags, tt.args, io.Discard)
		if !errors.As(err, new(usageError)) || err.Error() != tt.want {
			t.Errorf("%q: %v, want %s", tt.args, err, tt.want)
		}
	}
}

func TestDistance(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"abc", "abc", 0},
		{"", "abc", 3},
		{"abc", "", 3},
		{"abc", "abd", 1},
		{"abc", "ab", 1},
		{"abc", "xabc", 1},
		{"kitten", "sitting", 3},
		{"ab", "ba", 2},
	} {
		if got := distance(tt.a, tt.b); got != tt.want {
			t.Errorf("distance(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}
