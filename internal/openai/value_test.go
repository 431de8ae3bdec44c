package openai_test

import (
	"encoding/json"
	"testing"

	"github.com/baton-llm/baton/internal/openai"
)

func TestValueInt(t *testing.T) {
	t.Parallel()
	tests := []struct {
		raw  string
		want int64
		ok   bool
	}{
		{"0", 0, true},
		{"-0", 0, true},
		{"512", 512, true},
		{"-1", -1, true},
		{"9007199254740993", 9007199254740993, true},
		{"9223372036854775807", 9223372036854775807, true},
		{"-9223372036854775808", -9223372036854775808, true},
		{"9223372036854775808", 0, false},
		{"-9223372036854775809", 0, false},
		{"100000000000000000000000000000000000000000", 0, false},
		{"5.0", 0, false},
		{"1e2", 0, false},
		{"NaN", 0, false},
		{"-Infinity", 0, false},
		{`"5"`, 0, false},
		{"true", 0, false},
		{"null", 0, false},
		{"[5]", 0, false},
	}
	for _, tt := range tests {
		got, ok := scan(t, `{"n":`+tt.raw+`}`, "n").Int()
		if ok != tt.ok || ok && got != tt.want {
			t.Errorf("Int of %s: got %d, %t, want %d, %t", tt.raw, got, ok, tt.want, tt.ok)
		}
	}
	if _, ok := (openai.Value{}).Int(); ok {
		t.Error("Int of a missing value is true")
	}
}

func TestValueBool(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]bool{"true": true, "false": false, "null": false, "1": false, `"true"`: false} {
		if got := scan(t, `{"stream":`+raw+`}`, "stream").Bool(); got != want {
			t.Errorf("Bool of %s: got %t, want %t", raw, got, want)
		}
	}
}

func TestValueText(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, raw, text, appended string
	}{
		{"empty", `""`, "", ""},
		{"plain", `"llama"`, "llama", "llama"},
		{"not ASCII", `"é\u00e9"`, "éé", "éé"},
		{"escapes", `"\"\\\/\b\f\n\r\t"`, "\"\\/\b\f\n\r\t", "\"\\/\b\f\n\r\t"},
		{"between text", `"a\nb\\c"`, "a\nb\\c", "a\nb\\c"},
		{"NUL", `"\u0000"`, "\x00", "\x00"},
		{"hexadecimal digits", `"\u0aF9\uaf0A"`, "\u0af9\uaf0a", "\u0af9\uaf0a"},
		{"pair", `"\ud83d\ude00"`, "\U0001F600", "\U0001F600"},
		{"pair in upper case", `"\uD83D\uDE00!"`, "\U0001F600!", "\U0001F600!"},
		{"high half", `"\ud83d"`, "\uFFFD", "\uFFFD"},
		{"low half", `"\ude00x"`, "\uFFFDx", "\uFFFDx"},
		{"halves in the wrong order", `"\ude00\ud83d"`, "\uFFFD\uFFFD", "\uFFFD\uFFFD"},
		{"high half before another", `"\ud83d\ud83d\ude00"`, "\uFFFD\U0001F600", "\uFFFD\U0001F600"},
		{"high half before a letter", `"\ud83d\u0041"`, "\uFFFDA", "\uFFFDA"},
		{"high half before an escape", `"\ud83d\n12345"`, "\uFFFD\n12345", "\uFFFD\n12345"},
		{"high half before an escape and the digits of a low half", `"\ud83d\nde00"`, "\uFFFD\nde00", "\uFFFD\nde00"},
		{"not UTF-8", "\"a\xff\xfeb\"", "a\uFFFDb", "a\xff\xfeb"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			v := scan(t, `{"s":`+tt.raw+`}`, "s")
			if got, ok := v.Text(); !ok || got != tt.text {
				t.Errorf("Text: got %q, %t, want %q", got, ok, tt.text)
			}
			got, ok := v.AppendString([]byte("> "))
			if !ok || string(got) != "> "+tt.appended {
				t.Errorf("AppendString: got %q, %t, want %q", got, ok, "> "+tt.appended)
			}
			var std string
			if err := json.Unmarshal([]byte(tt.raw), &std); err != nil {
				t.Fatal(err)
			}
			if tt.name != "not UTF-8" && std != tt.text {
				t.Errorf("encoding/json reads %q", std)
			}
		})
	}
	for _, raw := range []string{"1", "null", `["a"]`, `{"a":"b"}`} {
		v := scan(t, `{"s":`+raw+`}`, "s")
		if got, ok := v.Text(); ok || got != "" {
			t.Errorf("Text of %s: got %q, %t", raw, got, ok)
		}
		if got, ok := v.AppendString([]byte("> ")); ok || string(got) != "> " {
			t.Errorf("AppendString of %s: got %q, %t", raw, got, ok)
		}
	}
	if _, ok := (openai.Value{}).Text(); ok {
		t.Error("Text of a missing value is true")
	}
}

func TestKindString(t *testing.T) {
	t.Parallel()
	for kind, want := range map[openai.Kind]string{
		openai.Missing: "missing", openai.Null: "null", openai.False: "false", openai.True: "true",
		openai.Number: "number", openai.String: "string", openai.Array: "array", openai.Object: "object",
		99: "invalid",
	} {
		if got := kind.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
