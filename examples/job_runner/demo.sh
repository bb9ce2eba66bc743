# shellcheck shell=bash disable=SC2154  # sourced by scripts/demo, which sets what is used here
# Runs the job runner on an SQLite file, with the arguments given; without any, once for each fault.
job_runner_database=sqlite://$scratch/job_runner

if (($# > 0)); then
  run_program "$program" --redis "$redis_url" --database "$job_runner_database" "$@"
else
  for fault in none no-lease pause-worker kill-worker; do
    say "job_runner --fault $fault"
    run_program "$program" --redis "$redis_url" --database "$job_runner_database-$fault" \
      --fault "$fault"
  done
fi
