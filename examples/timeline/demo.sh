# shellcheck shell=bash disable=SC2154  # what scripts/demo sets
# The program, with the arguments given.

run_program "$program" --redis "$redis_url" "$@"
