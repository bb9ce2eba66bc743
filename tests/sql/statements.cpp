#include "sql/statements.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <fstream>
#include <mutex>
#include <regex>
#include <stdexcept>

namespace redlease::test {
namespace {

struct Used {
  std::mutex mutex;
  std::set<std::string> names;
};

Used& used() {
  static Used all;
  return all;
}

bool is_name(char c) { return std::islower(static_cast<unsigned char>(c)) != 0 || c == '_'; }

}  // namespace

std::map<std::string, std::string> sql_blocks(const std::string& page) {
  const std::string path = std::string(REDLEASE_DOCS "/") + page;
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);

  static const std::regex comment("<!-- sql: ([a-z-]+) -->");
  std::map<std::string, std::string> blocks;
  std::string before;
  for (std::string line; std::getline(file, line); before = line) {
    if (line != "```sql") continue;
    std::smatch name;
    if (!std::regex_match(before, name, comment)) {
      throw std::runtime_error(path + ": a block of SQL behind '" + before + "' has no name");
    }
    std::string block;
    while (std::getline(file, line) && line != "```") block += line + '\n';
    if (!blocks.emplace(name[1], block).second) {
      throw std::runtime_error(path + ": two blocks are called " + name[1].str());
    }
  }
  return blocks;
}

const std::string& documented(const std::string& name) {
  static const auto blocks = sql_blocks("fencing.md");
  const auto found = blocks.find(name);
  if (found == blocks.end()) throw std::logic_error("docs/fencing.md has no SQL called " + name);
  const std::lock_guard lock(used().mutex);
  used().names.insert(name);
  return found->second;
}

std::set<std::string> documented_and_used() {
  const std::lock_guard lock(used().mutex);
  return used().names;
}

Numbered numbered(const std::string& statement) {
  Numbered result;
  for (std::size_t at = 0; at < statement.size();) {
    std::size_t end = at + 1;
    if (statement[at] == ':') {
      while (end < statement.size() && is_name(statement[end])) ++end;
    }
    if (end == at + 1) {
      result.text += statement[at];
    } else {
      auto& names = result.parameters;
      auto known = std::find(names.begin(), names.end(), statement.substr(at + 1, end - at - 1));
      if (known == names.end()) {
        known = names.insert(names.end(), statement.substr(at + 1, end - at - 1));
      }
      result.text += '$' + std::to_string(known - names.begin() + 1);
    }
    at = end;
  }
  return result;
}

}  // namespace redlease::test
