package discovery_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/baton-llm/baton/internal/discovery"
	"github.com/baton-llm/baton/internal/worker"
)

func TestParseURL(t *testing.T) {
	t.Parallel()
	none := worker.Rank(0)
	tests := []struct {
		in   string
		base string
		rank worker.Rank
	}{
		{"http://10.0.0.1:8000", "http://10.0.0.1:8000", none},
		{"https://engine.example:8443", "https://engine.example:8443", none},
		{" http://a:8000\n", "http://a:8000", none},
		{"http://localhost", "http://localhost", none},

		{"HTTP://Engine.Example:8000", "http://engine.example:8000", none},
		{"http://a:8000/", "http://a:8000", none},
		{"http://a:8000///", "http://a:8000", none},
		{"http://a/llm", "http://a/llm", none},
		{"http://a:8000/LLM/v2/", "http://a:8000/LLM/v2", none},
		{"http://a/a%2Fb/", "http://a/a%2Fb", none},
		{"http://a/x%40y z", "http://a/x%40y%20z", none},
		{"http://a?", "http://a", none},
		{"http://a#", "http://a", none},

		{"http://a:80", "http://a", none},
		{"https://a:443/x", "https://a/x", none},
		{"https://a:80", "https://a:80", none},
		{"http://a:443", "http://a:443", none},
		{"http://a:", "http://a", none},
		{"http://a:/x", "http://a/x", none},
		{"http://a:08000", "http://a:8000", none},
		{"http://[::1]:80", "http://[::1]", none},

		{"http://[::1]:8000", "http://[::1]:8000", none},
		{"http://[::1]", "http://[::1]", none},
		{"http://[FD00::0001]:8000", "http://[fd00::1]:8000", none},
		{"http://[fd00:0:0:0:0:0:0:1]:8000", "http://[fd00::1]:8000", none},
		{"http://[fe80::1%25eth0]:8000", "http://[fe80::1%25eth0]:8000", none},
		{"http://[FE80::1%25enP2p1s0]/x@3", "http://[fe80::1%25enP2p1s0]/x", worker.AtRank(3)},
		{"http://[fe80::1%eth0]:8000", "http://[fe80::1%25eth0]:8000", none},

		{"http://a:8000@0", "http://a:8000", worker.AtRank(0)},
		{"http://a:8000/@1", "http://a:8000", worker.AtRank(1)},
		{"http://a:8000/llm@65534", "http://a:8000/llm", worker.AtRank(worker.MaxRank)},
		{"http://a:80@07", "http://a", worker.AtRank(7)},
		{"http://[::1]:8000@2", "http://[::1]:8000", worker.AtRank(2)},
	}
	for _, tt := range tests {
		base, rank, err := discovery.ParseURL(tt.in)
		if err != nil || base != tt.base || rank != tt.rank {
			t.Errorf("ParseURL(%q) = %q, %d, %v, want %q, %d", tt.in, base, rank, err, tt.base, tt.rank)
			continue
		}
		checkForm(t, tt.in, base, rank)
	}
}

func TestParseURLErrors(t *testing.T) {
	t.Parallel()
	tests := []struct{ in, why string }{
		{"", "must start with http://"},
		{"10.0.0.1:8000", "must start with http://"},
		{"engine:8000", "must start with http://"},
		{"//engine:8000", "must start with http://"},
		{"http:engine", "must start with http://"},
		{"http:/engine", "must start with http://"},
		{"ftp://engine", "must start with http://"},
		{"grpc://engine:50051", "gRPC workers are not supported"},
		{"GRPCS://engine:50051", "gRPC workers are not supported"},

		{"http://", "has no host"},
		{"http://:8000", "has no host"},
		{"http:///llm", "has no host"},
		{"http://[]:8000", "invalid host"},

		{"http://a:0", "port must be between 1 and 65535"},
		{"http://a:65536", "port must be between 1 and 65535"},
		{"http://a:99999999999999999999", "port must be between 1 and 65535"},
		{"http://a:-1", "port"},
		{"http://a:+80", "port"},
		{"http://a:8000x", "port"},
		{"http://a:80:90", "invalid port"},
		{"http://::1:8000", "invalid port"},
		{"http://[::1", "missing ']'"},
		{"http://[::g]:8000", "invalid host"},
		{"http://[10.0.0.1]:8000", "invalid IP-literal"},
		{"http://[%25eth0]:8000", "invalid host"},

		{"http://[fe80::1%25a%20b]", "letters, digits"},
		{"http://[fe80::1%\xd1]", "letters, digits"},

		{"http://a:8000@", "must be a data-parallel rank"},
		{"http://a:8000@-1", "must be a data-parallel rank"},
		{"http://a:8000@+1", "must be a data-parallel rank"},
		{"http://a:8000@1.5", "must be a data-parallel rank"},
		{"http://a:8000@65535", "must be a data-parallel rank"},
		{"http://a:8000@18446744073709551617", "must be a data-parallel rank"},
		{"http://a:8000@one", "must be a data-parallel rank"},
		{"http://a:8000@1@2", "more than one @"},
		{"http://a/x@y@2", "more than one @"},

		{"http://user@a:8000@1", "more than one @"},
		{"http://a?x=1", "must not have a query or fragment"},
		{"http://a#x", "must not have a query or fragment"},
		{"http://a b", "invalid character"},
		{"http://a\x00", "invalid control character"},
		{"http://a/%zz", "invalid URL escape"},
	}
	for _, tt := range tests {
		base, rank, err := discovery.ParseURL(tt.in)
		if err == nil || base != "" || rank != 0 {
			t.Errorf("ParseURL(%q) = %q, %d, %v, want an error", tt.in, base, rank, err)
			continue
		}
		if !strings.Contains(err.Error(), tt.why) {
			t.Errorf("ParseURL(%q): %v, want %q in it", tt.in, err, tt.why)
		}
	}
}

// TestParseURLKeepsSecrets: a password that should not be there is not repeated
// in an error, which may be logged.
func TestParseURLKeepsSecrets(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		"http://user:secret@a:8000", "http://user:secret@a:8000@1", "http://secret@a", "user:secret@a:8000",
		"http://user:secret@a:8000x", "http://user:secret@a b", "http://user:secret@[::1", "ftp://user:secret@a/",
	} {
		_, _, err := discovery.ParseURL(in)
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("ParseURL(%q): %v", in, err)
		}
	}
}

// checkForm checks what holds for every URL that is accepted.
func checkForm(t *testing.T, in, base string, rank worker.Rank) {
	t.Helper()
	id := worker.ID{URL: base, Rank: rank}
	for text, want := range map[string]worker.Rank{base: 0, id.Label(): rank, base + "/": 0, strings.TrimSpace(in): rank} {
		again, at, err := discovery.ParseURL(text)
		if again != base || at != want || err != nil {
			t.Errorf("ParseURL(%q) gives %q, and of that %q gives %q, %d, %v", in, base, text, again, at, err)
		}
	}
	u, err := url.Parse(base)
	switch {
	case err != nil:
		t.Errorf("ParseURL(%q) gives %q: %v", in, base, err)
	case u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "", u.User != nil, u.RawQuery != "", u.Fragment != "":
		t.Errorf("ParseURL(%q) gives %q", in, base)
	case strings.HasSuffix(base, "/"), strings.HasSuffix(u.Host, ":"), strings.Contains(base, "@"):
		t.Errorf("ParseURL(%q) gives %q", in, base)
	}
	if _, err := http.NewRequest("GET", base+"/health", http.NoBody); err != nil {
		t.Errorf("ParseURL(%q) gives %q, of which no request can be made: %v", in, base, err)
	}
}

func FuzzParseURL(f *testing.F) {
	for _, seed := range []string{
		"http://10.0.0.1:8000@1", "https://A.Example:443/x/", "http://[fe80::1%25eth0]:8000", "http://[::FFFF:1.2.3.4]:80@2",
		"grpc://a", "http://u:p@a", "http://a?b#c", "10.0.0.1:8000", "http://a/x%2Fy%40z", "http://\u0130.example", "http://%C3%9C:1",
		"http://a//b/../c//", "http://a%2", "http://[::1%2525]", "http://a/;x=[]|\"<>", "http://a\xff/\xff", "http:///@1", "http://a:80/?",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		base, rank, err := discovery.ParseURL(in)
		if err != nil {
			if base != "" || rank != 0 {
				t.Errorf("ParseURL(%q) = %q, %d with %v", in, base, rank, err)
			}
			return
		}
		checkForm(t, in, base, rank)
	})
}
