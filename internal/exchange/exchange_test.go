package exchange_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/baton-llm/baton/internal/exchange"
)

func TestFields(t *testing.T) {
	t.Parallel()
	base := func() exchange.Fields {
		return exchange.Fields{{"A", "1"}, {"B", "2"}, {"A", "3"}, {"C", ""}}
	}
	for name, tt := range map[string]struct {
		got, want exchange.Fields
	}{
		"set replaces all values":   {base().Set("A", "x"), exchange.Fields{{"B", "2"}, {"C", ""}, {"A", "x"}}},
		"set adds":                  {base().Set("D", "x"), append(base(), exchange.Field{Name: "D", Value: "x"})},
		"set on nothing":            {exchange.Fields(nil).Set("A", "x"), exchange.Fields{{"A", "x"}}},
		"del removes all values":    {base().Del("A"), exchange.Fields{{"B", "2"}, {"C", ""}}},
		"del of what is not there":  {base().Del("D"), base()},
		"names are canonical":       {base().Del("a"), base()},
		"del of the only one there": {exchange.Fields{{"A", "1"}}.Del("A"), exchange.Fields{}},
	} {
		if diff := cmp.Diff(tt.want, tt.got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
	for name, want := range map[string]string{"A": "1", "B": "2", "C": "", "D": "", "a": ""} {
		if got := base().Get(name); got != want {
			t.Errorf("Get(%q) = %q, want %q", name, got, want)
		}
	}
}

// Case 2.21: what concerns one connection does not go on.
func TestEndToEnd(t *testing.T) {
	t.Parallel()
	in := exchange.Fields{
		{"Set-Cookie", "a=1"},
		{"Connection", "keep-alive, X-Hop"},
		{"X-Hop", "1"},
		{"Keep-Alive", "timeout=5"},
		{"Proxy-Authenticate", "Basic"},
		{"Proxy-Authorization", "Basic eA=="},
		{"Proxy-Connection", "keep-alive"},
		{"Te", "trailers"},
		{"Trailer", "X-Sum"},
		{"Transfer-Encoding", "chunked"},
		{"Upgrade", "h2c"},
		{"Authorization", "Bearer k"},
		{"Connection", " x-other ,,close"},
		{"X-Other", "2"},
		{"X-Other", "3"},
		{"Set-Cookie", "b=2"},
		{"Set-Cookie", "a=1"},
		{"Traceparent", "00-1-2-01"},
	}
	before := append(exchange.Fields{}, in...)
	got := in.EndToEnd()
	want := exchange.Fields{
		{"Set-Cookie", "a=1"},
		{"Authorization", "Bearer k"},
		{"Set-Cookie", "b=2"},
		{"Set-Cookie", "a=1"},
		{"Traceparent", "00-1-2-01"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	// The result is a copy: changing it leaves the client's fields alone.
	got = got.Del("Set-Cookie").Set("Authorization", "x")
	_ = append(got, exchange.Field{Name: "X", Value: "y"})
	if diff := cmp.Diff(before, in); diff != "" {
		t.Errorf("the fields it was made from changed (-before +after)\n%s", diff)
	}
}

// A client chooses how many names its Connection fields have and how many fields
// there are: the work must not be their product.
func TestEndToEndIsLinear(t *testing.T) {
	t.Parallel()
	const n = 100_000
	in := make(exchange.Fields, 0, 2*n)
	for i := range n {
		in = append(in, exchange.Field{Name: "Connection", Value: "b" + strconv.Itoa(i)})
	}
	for i := range n {
		in = append(in, exchange.Field{Name: "A" + strconv.Itoa(i), Value: "x"})
	}
	start := time.Now()
	if got := len(in.EndToEnd()); got != n {
		t.Errorf("%d fields are left, want %d", got, n)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

func TestError(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err    error
		text   string
		unsent bool
	}{
		{&exchange.Error{Sent: exchange.Nothing, Err: io.EOF}, "connect: EOF", true},
		{&exchange.Error{Sent: exchange.Stale, Err: io.EOF}, "EOF", false},
		{&exchange.Error{Sent: exchange.Maybe, Err: io.EOF}, "EOF", false},
		{fmt.Errorf("leg: %w", &exchange.Error{Sent: exchange.Nothing, Err: io.EOF}), "leg: connect: EOF", true},
		{context.Canceled, "context canceled", false},
	} {
		if got := tt.err.Error(); got != tt.text {
			t.Errorf("text %q, want %q", got, tt.text)
		}
		if got := exchange.Unsent(tt.err); got != tt.unsent {
			t.Errorf("Unsent(%v) = %t, want %t", tt.err, got, tt.unsent)
		}
	}
	if exchange.Unsent(nil) {
		t.Error("Unsent(nil)")
	}
	if err := error(&exchange.Error{Sent: exchange.Maybe, Err: io.EOF}); !errors.Is(err, io.EOF) {
		t.Error("the cause is lost")
	}
}
