// What a user pays for redlease: a file that includes it (seconds to compile, bytes of object code,
// headers pulled in) beside one that includes hiredis, and a small program that takes a lease.
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>

#include "parts.hpp"

namespace redlease::bench {
namespace {

namespace fs = std::filesystem;

struct Scratch {
  Scratch() {
    std::string name = (fs::temp_directory_path() / "redlease-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    path = name;
  }
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  fs::path path;
};

struct Cost {
  double seconds = 0;
  double bytes = 0;
  double headers = 0;
};

void shell(const std::string& command) {
  if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
}

double processor_seconds_of_children() {
  rusage used{};
  if (::getrusage(RUSAGE_CHILDREN, &used) != 0) throw std::runtime_error("getrusage failed");
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// Processor time: what else the machine does counts for little.
double seconds_of(const std::string& command) {
  const double before = processor_seconds_of_children();
  shell(command);
  return processor_seconds_of_children() - before;
}

double size_of(const fs::path& file) { return static_cast<double>(fs::file_size(file)); }

std::string compile_command(const fs::path& source) {
  return fmt::format("{} -std=c++20 -O2 {} '{}'", REDLEASE_BENCH_COMPILER, REDLEASE_BENCH_INCLUDES,
                     source.string());
}

double count_headers(const fs::path& source) {
  const auto list = source.parent_path() / "headers.txt";
  shell(fmt::format("{} -M -MF '{}' -MT x", compile_command(source), list.string()));
  std::ifstream in{list};
  double words = 0;
  for (std::string word; in >> word;) words += word != "\\" ? 1 : 0;
  return words - 2;  // the target and the source itself
}

Cost compile(const fs::path& source) {
  const auto object = source.parent_path() / "out.o";
  const double took =
      seconds_of(fmt::format("{} -c -o '{}'", compile_command(source), object.string()));
  return {took, size_of(object), count_headers(source)};
}

// --- files ------------------------------------------------------------------------------------

struct File {
  std::string name;
  std::string text;
};

// What the signatures of redlease's functions need of the standard library.
constexpr auto standard_headers =
    "#include <atomic>\n#include <chrono>\n#include <functional>\n#include <memory>\n"
    "#include <optional>\n#include <span>\n#include <stdexcept>\n#include <stop_token>\n"
    "#include <string>\n#include <string_view>\n#include <system_error>\n#include <vector>\n";

constexpr auto a_lease =
    "#include <redlease/redlease.hpp>\n"
    "int main(int, char** argv) {\n"
    "  redlease::Client client{argv[1]};\n"
    "  auto lease = client.acquire(\"key\", {.at_most = std::chrono::seconds{5}});\n"
    "  if (!lease) return 1;\n"
    "  lease->ensure_held();\n"
    "  lease->release();\n"
    "}\n";

// The least that takes a key and gives it back, by raw hiredis, without waiting or renewing.
constexpr auto a_key =
    "#include <hiredis/hiredis.h>\n"
    "int main(int, char** argv) {\n"
    "  redisContext* c = redisConnectUnix(argv[1]);\n"
    "  if (c == nullptr || c->err != 0) return 1;\n"
    "  freeReplyObject(redisCommand(c, \"SET key token NX PX 30000\"));\n"
    "  freeReplyObject(redisCommand(c, \"EVAL %s 1 key token\",\n"
    "      \"if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) "
    "end\"));\n"
    "  redisFree(c);\n"
    "}\n";

std::vector<File> files() {
  const std::string empty = "int main() {}\n";
  return {
      {"include/hiredis.h", "#include <hiredis/hiredis.h>\n" + empty},
      {"include/nothing", empty},
      {"include/chrono_string_functional",
       "#include <chrono>\n#include <functional>\n#include <string>\n" + empty},
      {"include/standard_headers_of_signatures", standard_headers + empty},
      {"include/redlease.hpp", "#include <redlease/redlease.hpp>\n" + empty},
      {"include/redlease.hpp_used", a_lease},
  };
}

void measure_files(const Settings& settings, std::vector<Row>& rows) {
  const Scratch scratch;
  const auto all = files();
  std::vector<std::vector<double>> seconds(all.size());
  std::vector<Cost> last(all.size());
  for (int round = 0; round < settings.rounds; ++round) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto source = scratch.path / "in.cpp";
      std::ofstream{source} << all[i].text;
      last[i] = compile(source);
      seconds[i].push_back(last[i].seconds);
    }
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto& name = all[i].name;
    rows.push_back({name + "/compile_time", 1, median(seconds[i]), "s",
                    ratio(all[0].name, seconds[i], seconds[0])});
    rows.push_back({name + "/object_size", 1, last[i].bytes, "bytes"});
    rows.push_back({name + "/headers", 1, last[i].headers, "files"});
  }
}

// --- programs ---------------------------------------------------------------------------------

fs::path write(const fs::path& file, std::string_view text) {
  std::ofstream{file} << text;
  return file;
}

// A program from a source and what is linked to it, as it is and stripped.
void measure_program(const std::string& name, const fs::path& source, const std::string& linked,
                     std::vector<Row>& rows) {
  const auto program = source.parent_path() / "program";
  for (const bool stripped : {false, true}) {
    shell(fmt::format("{} {} -o '{}' {} {} -pthread", compile_command(source), stripped ? "-s" : "",
                      program.string(), linked, REDLEASE_BENCH_HIREDIS));
    rows.push_back(
        {"program/" + name + (stripped ? "/stripped" : "/size"), 1, size_of(program), "bytes"});
  }
}

// The library is compiled here, with the options of the rest, and once: it takes a while.
void measure_programs(std::vector<Row>& rows) {
  const Scratch scratch;
  const auto& path = scratch.path;
  const auto raw = write(path / "raw.cpp", a_key);
  const auto lease = write(path / "lease.cpp", a_lease);
  const auto header_only =
      write(path / "header_only.cpp", std::string{"#include <redlease/src.hpp>\n"} + a_lease);
  const auto library = write(path / "library.cpp", "#include <redlease/src.hpp>\n");

  const auto archive = (path / "libredlease.a").string();
  const auto object = (path / "library.o").string();
  rows.push_back({"library/compile_time", 1,
                  seconds_of(fmt::format("{} -fPIC -c -o '{}'", compile_command(library), object)),
                  "s"});
  rows.push_back({"library/headers", 1, count_headers(library), "files"});
  shell(fmt::format("ar rcs '{}' '{}'", archive, object));
  const auto shared = (path / "libredlease.so").string();
  shell(fmt::format("{} -shared -s -o '{}' '{}' {} -pthread", REDLEASE_BENCH_COMPILER, shared,
                    object, REDLEASE_BENCH_HIREDIS));
  rows.push_back({"library/shared/stripped", 1, size_of(shared), "bytes"});

  measure_program("hiredis", raw, "", rows);
  measure_program("static", lease, "'" + archive + "'", rows);
  measure_program("shared", lease, "'" + shared + "'", rows);
  measure_program("header_only", header_only, "", rows);
}

}  // namespace

std::vector<Row> measure_includes(const Settings& settings) {
  std::vector<Row> rows;
  measure_files(settings, rows);
  measure_programs(rows);
  return rows;
}

}  // namespace redlease::bench
