// redlease_bench [contended|cycle|include|renew] [--json FILE] [--rounds N] [--redis HOST:PORT]
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <exception>
#include <functional>
#include <map>

#include "contenders.hpp"
#include "parts.hpp"

namespace {

using redlease::bench::Row;
using redlease::bench::Settings;

const std::map<std::string, std::function<std::vector<Row>(const Settings&)>> parts{
    {"contended", redlease::bench::measure_contention},
    {"cycle", redlease::bench::measure_cycles},
    {"include", redlease::bench::measure_includes},
    {"renew", redlease::bench::measure_renewals},
};

void set_server(Settings& settings, const std::string& url) {
  const std::string scheme = "redis://";
  const auto colon = url.rfind(':');
  if (!url.starts_with(scheme) || colon < scheme.size()) {
    throw CLI::ValidationError("--redis", "must be redis://HOST:PORT");
  }
  settings.host = url.substr(scheme.size(), colon - scheme.size());
  settings.port = std::stoi(url.substr(colon + 1));
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app{
      "Measures redlease beside raw hiredis. Both talk to the same server; use one that "
      "does nothing else."};
  Settings settings;
  std::string part;
  std::string json;
  std::string url = "redis://127.0.0.1:6379";
  int window = static_cast<int>(settings.window.count());
  app.add_option("part", part, "only this part")
      ->check(CLI::IsMember({"contended", "cycle", "include", "renew"}));
  app.add_option("--json", json, "also write the rows to this file");
  app.add_option("--rounds", settings.rounds, "of each measurement")->check(CLI::Range(1, 1000));
  app.add_option("--window", window, "of one measurement, in ms")->check(CLI::Range(20, 60'000));
  app.add_option("--redis", url, "the server, redis://HOST:PORT");
  std::string subject;
  int threads = 0;
  auto* contend = app.add_subcommand("contend", "one of the processes of the contended part");
  contend->group("");  // not for people
  contend->add_option("subject", subject)->required();
  contend->add_option("threads", threads)->required();
  try {
    app.parse(argc, argv);
    set_server(settings, url);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  settings.window = std::chrono::milliseconds{window};
  if (contend->parsed()) {
    redlease::bench::contend(settings, subject, threads);
    return 0;
  }

  std::vector<Row> rows;
  for (const auto& [name, measure] : parts) {
    if (!part.empty() && part != name) continue;
    fmt::print("measuring {} ({} rounds of {} ms each)\n", name, settings.rounds, window);
    const auto more = measure(settings);
    rows.insert(rows.end(), more.begin(), more.end());
  }
  print(rows);
  if (!json.empty()) write_json(rows, json);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "redlease_bench: {}\n", error.what());
  return 1;
}
