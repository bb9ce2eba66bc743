# shellcheck shell=bash disable=SC2034  # most variables are for the script that sources this
# Shared by the scripts beside it, which source it first. Leaves the caller in the project's root.

set -euo pipefail
caller_dir=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
jobs=${REDLEASE_JOBS:-$(nproc)}

say() { printf '== %s\n' "$*"; }

die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

# Prints our C++ sources, each ended by a NUL.
cpp_sources() { existing_files '*.hpp' '*.ipp' '*.cpp'; }

# Prints the files git tracks or would track that match one of the patterns, each ended by a NUL.
existing_files() {
  local file
  git ls-files -z --cached --others --exclude-standard --deduplicate -- "$@" |
    while IFS= read -r -d '' file; do
      if [[ -f $file ]]; then printf '%s\0' "$file"; fi
    done
}

# Prints the first of the given commands that exists.
first_command() {
  local name
  for name in "$@"; do
    if command -v "$name"; then return; fi
  done
  die "none of these commands is there: $*; ./scripts/setup ci installs them"
}

# --- a scratch directory, a redis-server and a program on it, all gone with the script --------

scratch=
redis_pid=
program_pid=

# Makes $scratch.
make_scratch() {
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  scratch=$(mktemp -d "${TMPDIR:-/tmp}/redlease-XXXXXX")
}

clean_up() {
  if [[ -n $program_pid ]]; then
    kill -TERM -- "-$program_pid" 2>/dev/null || true
    kill -CONT -- "-$program_pid" 2>/dev/null || true  # the demo stops one of its processes
  fi
  if [[ -n $redis_pid ]]; then
    kill "$redis_pid" 2>/dev/null || true
    wait "$redis_pid" 2>/dev/null || true
  fi
  if [[ -n $scratch ]]; then rm -rf "$scratch"; fi
}

# Starts a redis-server that keeps nothing, with the given options; sets redis_pid.
launch_redis() {
  redis-server --save '' --appendonly no --daemonize no --dir "$scratch" "$@" \
    </dev/null >"$scratch/redis.log" 2>&1 &
  redis_pid=$!
}

# Waits until the server that answers redis-cli with the given options is the one just launched.
# Fails when that one ended, for instance because another has its port.
redis_is_up() {
  local deadline=$((SECONDS + 10)) info
  while kill -0 "$redis_pid" 2>/dev/null && ((SECONDS < deadline)); do
    info=$(redis-cli "$@" info server 2>/dev/null) || true
    if [[ $info == *"process_id:$redis_pid"[!0-9]* ]]; then return 0; fi
    sleep 0.05
  done
  return 1
}

# Starts a redis-server on a unix socket; sets redis_url.
start_redis_on_socket() {
  local socket=$scratch/redis.sock
  launch_redis --port 0 --unixsocket "$socket"
  redis_is_up -s "$socket" || die "redis-server did not start: $(tail -n 3 "$scratch/redis.log")"
  redis_url=unix://$socket
}

# Starts a redis-server on a free port of the loopback; sets redis_url.
start_redis_on_port() {
  local port
  for _ in {1..20}; do
    port=$((20000 + RANDOM % 10000))
    launch_redis --bind 127.0.0.1 --port "$port"
    if redis_is_up -h 127.0.0.1 -p "$port"; then
      redis_url=redis://127.0.0.1:$port
      return
    fi
    kill "$redis_pid" 2>/dev/null || true
  done
  die "redis-server did not start: $(tail -n 3 "$scratch/redis.log")"
}

# Runs a program and what it starts in a process group of its own, and waits for it in a way that a
# signal to this script interrupts.
run_program() {
  local status=0
  set -m
  "$@" </dev/null &
  program_pid=$!
  set +m
  wait "$program_pid" || status=$?
  program_pid=
  return "$status"
}
