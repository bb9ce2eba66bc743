// The SQL of docs/fencing.md. The tests run what stands there, so that the page can't drift from
// what was tried.
#ifndef REDLEASE_TESTS_SQL_STATEMENTS_HPP
#define REDLEASE_TESTS_SQL_STATEMENTS_HPP

#include <map>
#include <set>
#include <string>
#include <vector>

namespace redlease::test {

// The ```sql blocks of a page by the name in the comment above each:  <!-- sql: NAME -->
// Throws if a block has no name, or one that another has.
std::map<std::string, std::string> sql_blocks(const std::string& page);

// The statement of that name in docs/fencing.md, and which ones have been asked for in this
// process. From any thread.
const std::string& documented(const std::string& name);
std::set<std::string> documented_and_used();

// A statement whose parameters :NAME have become $1, $2, … in the order of `parameters`.
struct Numbered {
  std::string text;
  std::vector<std::string> parameters;
};
Numbered numbered(const std::string& statement);

}  // namespace redlease::test

#endif
