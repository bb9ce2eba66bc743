# shellcheck shell=bash disable=SC2154  # what scripts/demo sets
# With arguments: the program with these. Without: once with each fault.

# Runs it with a database of its own.
run_inventory() {
  run_program "$program" --redis "$redis_url" --orders examples/inventory/data/orders.csv \
    --database "$(mktemp -d "$scratch/inventory-XXXXXX")/books.sqlite" "$@"
}

if (($# > 0)); then
  run_inventory "$@"
else
  for fault in none stop-before-check stop-before-write; do
    say "inventory --fault $fault"
    run_inventory --fault "$fault"
  done
fi
