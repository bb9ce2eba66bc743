# shellcheck shell=bash disable=SC2154  # what scripts/demo sets
# With arguments: the program with these. Without: once with each fault.

options=(--redis "$redis_url" --redis-pid "$redis_pid")
if (($# > 0)); then
  run_program "$program" "${options[@]}" "$@"
else
  for fault in none kill-rebuilder pause-redis; do
    say "cache_rebuild --fault $fault"
    run_program "$program" "${options[@]}" --fault "$fault"
  done
fi
