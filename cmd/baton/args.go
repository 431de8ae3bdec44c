package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// expandLists rewrites the greedy lists that vllm-router takes, --flag a b c,
// as --flag a --flag b --flag c. A list ends at the next flag. lists names the
// flags and says whether their list may be empty.
func expandLists(args []string, lists map[string]bool) ([]string, error) {
	var out []string
	for i := 0; i < len(args); i++ {
		name, isFlag := strings.CutPrefix(args[i], "--")
		mayBeEmpty, isList := lists[name]
		if !isFlag || !isList {
			out = append(out, args[i])
			continue
		}
		n := 0
		for ; i+1 < len(args) && !strings.HasPrefix(args[i+1], "-"); i++ {
			out = append(out, "--"+name, args[i+1])
			n++
		}
		if n == 0 && !mayBeEmpty {
			return nil, usageError{fmt.Errorf("--%s needs a value", name)}
		}
	}
	return out, nil
}

// prefill is one --prefill URL [PORT|none].
type prefill struct {
	url  string
	port string // bootstrap port or none; "" if neither was given
}

func (p prefill) hasPort() bool { return p.port != "" && !strings.EqualFold(p.port, "none") }

// cutPrefill takes --prefill URL [PORT|none] out of the arguments, as vllm-router
// does before it parses the rest. Further URLs may follow, as after --decode.
func cutPrefill(args []string) (rest []string, prefills []prefill, err error) {
	for i := 0; i < len(args); i++ {
		value, joined := strings.CutPrefix(args[i], "--prefill=")
		if args[i] != "--prefill" && !joined {
			rest = append(rest, args[i])
			continue
		}
		if !joined {
			if i+1 >= len(args) || strings.HasPrefix(args[i+1], "-") {
				return nil, nil, usageError{errors.New("--prefill needs a URL such as http://10.0.0.1:8000")}
			}
			i++
			value = args[i]
		}
		for more := true; more; {
			p := prefill{url: value}
			if i+1 < len(args) && isPort(args[i+1]) {
				i++
				p.port = args[i]
			}
			prefills = append(prefills, p)
			if more = i+1 < len(args) && isURL(args[i+1]); more {
				i++
				value = args[i]
			}
		}
	}
	return rest, prefills, nil
}

func isURL(s string) bool {
	return strings.HasPrefix(s, "http://") || strings.HasPrefix(s, "https://")
}

func isPort(s string) bool {
	if strings.EqualFold(s, "none") {
		return true
	}
	_, err := strconv.ParseUint(s, 10, 16)
	return err == nil
}

// parse parses the flags of a command, which takes no other arguments.
func parse(flags *pflag.FlagSet, args []string, stdout io.Writer) error {
	flags.SortFlags = false
	flags.SetOutput(stdout)
	flags.Usage = func() {
		fmt.Fprintf(stdout, "usage: baton %s [flags]\n\n%s", flags.Name(), flags.FlagUsages())
	}
	if err := flags.Parse(args); err != nil {
		if err == pflag.ErrHelp { //nolint:errorlint // pflag returns it as it is
			return err
		}
		return usageError{withNearest(err, flags)}
	}
	if flags.NArg() > 0 {
		return usageError{fmt.Errorf("unexpected argument %q", flags.Arg(0))}
	}
	return nil
}

// withNearest adds the nearest known flag to the error of an unknown one.
func withNearest(err error, flags *pflag.FlagSet) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return err
	}
	name := unknown.GetSpecifiedName()
	best, least := "", len(name)/2+1
	flags.VisitAll(func(f *pflag.Flag) {
		if d := distance(name, f.Name); d < least {
			best, least = f.Name, d
		}
	})
	if best == "" {
		return err
	}
	return fmt.Errorf("%w; did you mean --%s?", err, best)
}

// distance is the Levenshtein distance of two flag names.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(diagonal+cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
