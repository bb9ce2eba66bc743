#include <atomic>
#include <optional>
#include <pqxx/pqxx>

#include "sql/database.hpp"
#include "sql/statements.hpp"
#include "support/postgres_server.hpp"

namespace redlease::test {
namespace {

std::string text_of(const Value& value) {
  if (const auto* number = std::get_if<std::int64_t>(&value)) return std::to_string(*number);
  return std::get<std::string>(value);
}

class PostgresConnection : public Connection {
 public:
  explicit PostgresConnection(const std::string& url) : connection_(url) {}

  Result run(const std::string& statement, const Parameters& parameters) override {
    const auto [text, names] = numbered(statement);
    std::vector<std::string> values;
    for (const auto& name : names) values.push_back(text_of(parameters.at(name)));
    if (work_) return run_in(*work_, text, values);
    pqxx::nontransaction alone(connection_);
    return run_in(alone, text, values);
  }

  void begin() override { work_.emplace(connection_); }
  void commit() override {
    work_->commit();
    work_.reset();
  }
  void rollback() override {
    work_->abort();
    work_.reset();
  }

 private:
  static Result run_in(pqxx::transaction_base& transaction, const std::string& text,
                       const std::vector<std::string>& values) {
    const auto found = transaction.exec_params(
        text, pqxx::prepare::make_dynamic_params(values.begin(), values.end()));
    Result result;
    result.changed = static_cast<std::int64_t>(found.affected_rows());
    for (const auto& row : found) {
      auto& copy = result.rows.emplace_back();
      for (const auto& field : row) copy.emplace_back(field.c_str());
    }
    return result;
  }

  pqxx::connection connection_;
  std::optional<pqxx::work> work_;
};

class PostgresDatabase : public Database {
 public:
  PostgresDatabase() : name_("test_" + std::to_string(++count)) {
    PostgresConnection(server().url()).run("CREATE DATABASE " + name_, {});
  }

  std::unique_ptr<Connection> connect() override {
    return std::make_unique<PostgresConnection>(server().url(name_));
  }

 private:
  static PostgresServer& server() {
    static PostgresServer shared;
    return shared;
  }

  inline static std::atomic<int> count = 0;
  const std::string name_;
};

}  // namespace

std::unique_ptr<Database> make_postgres_database() { return std::make_unique<PostgresDatabase>(); }

}  // namespace redlease::test
