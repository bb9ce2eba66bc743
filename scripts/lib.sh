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
postgres_pid=
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
    kill -CONT "$redis_pid" 2>/dev/null || true  # a fault may have stopped it
    wait "$redis_pid" 2>/dev/null || true
  fi
  if [[ -n $postgres_pid ]]; then
    kill -INT "$postgres_pid" 2>/dev/null || true  # doesn't wait for its clients
    wait "$postgres_pid" 2>/dev/null || true
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

# Starts a PostgreSQL server on a unix socket in $scratch, whose data nobody will need after a power
# cut; sets postgres_url and postgres_pid. It refuses to run as root, so then it runs as postgres.
start_postgres() {
  local directory=$scratch/postgres as_postgres=() programs deadline
  # Debian has them beside each other in a directory of each version, outside the PATH.
  programs=$(first_command initdb /usr/lib/postgresql/{20..10}/bin/initdb)
  programs=$(dirname "$(readlink -f "$programs")")
  mkdir -m 700 "$directory"
  if ((EUID == 0)); then
    as_postgres=(setpriv --reuid=postgres --regid=postgres --init-groups)
    chmod go+x "$scratch"
    chown postgres: "$directory"
  fi
  ${as_postgres[@]+"${as_postgres[@]}"} "$programs/initdb" --username=postgres --auth=trust --no-sync \
    --encoding=UTF8 --locale=C --pgdata="$directory/data" >"$directory.log" 2>&1 ||
    die "initdb failed: $(tail -n 3 "$directory.log")"
  ${as_postgres[@]+"${as_postgres[@]}"} "$programs/postgres" -D "$directory/data" \
    -c listen_addresses= -c unix_socket_directories="$directory" -c fsync=off \
    </dev/null >>"$directory.log" 2>&1 &
  postgres_pid=$!
  deadline=$((SECONDS + 20))
  until "$programs/pg_isready" -q -h "$directory" -U postgres; do
    if ! kill -0 "$postgres_pid" 2>/dev/null || ((SECONDS >= deadline)); then
      die "PostgreSQL did not start: $(tail -n 3 "$directory.log")"
    fi
    sleep 0.05
  done
  postgres_url="postgresql://postgres@/postgres?host=$directory"
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
