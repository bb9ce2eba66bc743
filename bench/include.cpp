// What a user's file pays for `#include <redlease/redlease.hpp>` beside `#include
// <hiredis/hiredis.h>`: seconds to compile, bytes of object code, headers pulled in.
#include <fmt/format.h>
#include <stdlib.h>

#include <array>
#include <chrono>
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
  const auto start = std::chrono::steady_clock::now();
  shell(fmt::format("{} -c -o '{}'", compile_command(source), object.string()));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  return {took.count(), static_cast<double>(fs::file_size(object)), count_headers(source)};
}

}  // namespace

std::vector<Row> measure_includes(const Settings& settings) {
  const Scratch scratch;
  const std::array<std::pair<std::string, std::string>, 4> files{{
      {"include/nothing", ""},
      {"include/hiredis.h", "#include <hiredis/hiredis.h>\n"},
      {"include/chrono_string_functional",
       "#include <chrono>\n#include <functional>\n#include <string>\n"},
      {"include/redlease.hpp", "#include <redlease/redlease.hpp>\n"},
  }};
  std::array<std::vector<double>, 4> seconds;
  std::array<Cost, 4> last;
  for (int round = 0; round < settings.rounds; ++round) {
    for (std::size_t i = 0; i < files.size(); ++i) {
      const auto source = scratch.path / "in.cpp";
      std::ofstream{source} << files.at(i).second << "int main() {}\n";
      last.at(i) = compile(source);
      seconds.at(i).push_back(last.at(i).seconds);
    }
  }
  const std::string base = files[1].first;
  std::vector<Row> rows;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const auto& name = files.at(i).first;
    rows.push_back({name + "/compile_time", 1, median(seconds.at(i)), "s",
                    ratio(base, seconds.at(i), seconds[1])});
    rows.push_back({name + "/object_size", 1, last.at(i).bytes, "bytes"});
    rows.push_back({name + "/headers", 1, last.at(i).headers, "files"});
  }
  return rows;
}

}  // namespace redlease::bench
