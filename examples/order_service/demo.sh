# shellcheck shell=bash disable=SC2154  # what scripts/demo sets
# With arguments: the program with these, on SQLite and on PostgreSQL, unless they name a database.
# Without: the normal case, all faults, and what happens when layers are turned off.

if [[ -z $postgres_pid ]]; then start_postgres; fi

run_order_service() {
  say "order_service $*"
  run_program "$program" --redis "$redis_url" --redis-pid "$redis_pid" "$@"
}
on_sqlite() {
  run_order_service --database "sqlite://$(mktemp -d "$scratch/orders-XXXXXX")/books.sqlite" "$@"
}
on_postgres() { run_order_service --database "$postgres_url" "$@"; }

if (($# == 0)); then
  on_sqlite
  on_sqlite --fault all
  on_postgres --fault all
  on_sqlite --no-lease
  on_postgres --no-lease --no-condition
  on_sqlite --no-fence --no-condition --fault pause-worker
  say "order_service: all runs came out as they had to; in the last two the stock had to be wrong"
elif [[ " $* " == *" --database"* ]]; then
  run_order_service "$@"
else
  on_sqlite "$@"
  on_postgres "$@"
fi
