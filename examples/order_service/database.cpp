#include "database.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "postgres_database.hpp"
#include "sqlite_database.hpp"

namespace order_service {

namespace {

/// The path in sqlite:///path; empty for other URLs.
std::optional<std::string> sqlite_path(const std::string& url) {
  constexpr std::string_view scheme = "sqlite://";
  if (!url.starts_with(scheme) || url.size() == scheme.size()) return std::nullopt;
  return url.substr(scheme.size());
}

}  // namespace

std::unique_ptr<Database> open_database(const std::string& url) {
  if (const auto path = sqlite_path(url)) return std::make_unique<SqliteDatabase>(*path);
  if (url.starts_with("postgresql://") || url.starts_with("postgres://")) {
    return std::make_unique<PostgresDatabase>(url);
  }
  throw std::runtime_error("--database takes sqlite:///path or postgresql://…");
}

void prepare_database(const std::string& url) {
  if (const auto path = sqlite_path(url)) {
    if (std::filesystem::exists(*path)) {
      throw std::runtime_error(fmt::format("{} exists; name a new file", *path));
    }
    open_database(url)->run("PRAGMA journal_mode = WAL");  // readers don't wait; the file keeps it
    return;
  }
  const auto database = open_database(url);
  database->run("DROP SCHEMA IF EXISTS order_service CASCADE");
  database->run("CREATE SCHEMA order_service");
}

}  // namespace order_service
