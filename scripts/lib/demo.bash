# What the scripts share that test a demo fleet from outside. They source it. When
# they end, the fleet is stopped, and all files are gone but those in the cache
# directory. Set BATON to test a binary that exists.
#
#   tmp      a directory for files
#   cache    the directory for what is installed
#   venv     set by python_env: the virtual environment
#   url      set by start_demo: the router's URL
#   admin    that of its admin listener
#   engines  those of the engines
#
# shellcheck shell=bash

tmp=$(mktemp -d)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/baton-ci
demo_pid=

finish() {
	if [ -n "$demo_pid" ] && kill -TERM "$demo_pid" 2>/dev/null; then
		for _ in $(seq 100); do
			kill -0 "$demo_pid" 2>/dev/null || break
			sleep 0.1
		done
		kill -KILL "$demo_pid" 2>/dev/null || true
		wait "$demo_pid" 2>/dev/null || true
	fi
	rm -rf "$tmp"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# python_env NAME ARGUMENT... sets venv to a virtual environment with what pip
# install with these arguments installs. It is made once for each content of them
# and of the files among them.
python_env() {
	local name=$1 sum
	shift
	sum=$({
		python3 -c 'import platform; print(platform.python_version())'
		printf '%s\n' "$@"
		for file; do if [ -f "$file" ]; then cat "$file"; fi; done
	} | cksum | cut -d' ' -f1)
	venv=$cache/$name-$sum
	if [ ! -e "$venv/complete" ]; then
		echo "installing $*" >&2
		rm -rf "$venv"
		python3 -m venv "$venv" || return 1
		"$venv/bin/pip" install --quiet --disable-pip-version-check "$@" >&2 || return 1
		touch "$venv/complete"
	fi
}

# demo_says prints what the sed script $1 finds first in the demo's output.
demo_says() { sed -n "$1" "$tmp/stdout" | head -n 1; }

# start_demo starts the fleet on free ports and waits until it has answered once.
start_demo() {
	local baton=${BATON:-}
	if [ -z "$baton" ]; then
		baton=$tmp/baton
		go build -o "$baton" ./cmd/baton
	fi
	"$baton" demo --addr 127.0.0.1:0 >"$tmp/stdout" 2>"$tmp/stderr" </dev/null &
	demo_pid=$!
	admin=
	for _ in $(seq 300); do
		admin=$(demo_says 's|^ *curl \(http://[^ ]*\)/workers$|\1|p')
		if [ -n "$admin" ] || ! kill -0 "$demo_pid" 2>/dev/null; then break; fi
		sleep 0.1
	done
	if [ -z "$admin" ]; then
		echo 'baton demo did not say that it is ready; its output:' >&2
		cat "$tmp/stdout" "$tmp/stderr" >&2
		exit 1
	fi
	url=$(demo_says 's|^.*listening on \(http://[^ ]*\).*$|\1|p')
	mapfile -t engines < <(sed -nE 's#^ *(prefill|decode) +(http://[^ ]*)$#\2#p' "$tmp/stdout")
}

# with_demo COMMAND... runs a test and shows what the demo says if it fails.
with_demo() {
	if ! "$@"; then
		echo 'the last lines of baton demo:' >&2
		tail -n 40 "$tmp/stdout" "$tmp/stderr" >&2
		exit 1
	fi
}
